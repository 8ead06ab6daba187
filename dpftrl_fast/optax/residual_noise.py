# SPDX-License-Identifier: Apache-2.0
"""`residual_noise`: the noise of a plan as a gradient transformation of Optax."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpftrl_fast._validate import choice
from dpftrl_fast.jax.call import Caller
from dpftrl_fast.jax.host_noise import HostNoise, Leaves
from dpftrl_fast.noise.arguments import Memory
from dpftrl_fast.noise.keys import Seed
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.run.sealed_files import read_sealed, write_sealed

Transport = Literal["auto", "ffi", "callback"]

_SUMS = (np.dtype(np.float32), np.dtype(np.float64))
# The seal of a file finds damage; the secret in the file is the key.
_SEAL, _LABEL = b"dpftrl_fast.optax.residual_noise", "noise"


class ResidualNoiseState(NamedTuple):
    """Position of a run: public, like every other part of an optimiser's state.

    Attributes
    ----------
    step : jax.Array of int32
        Steps taken.
    run : jax.Array of uint32, shape (4,)
        Random number of the run. The key cannot be recovered from it.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, SinglePass
    >>> noise = residual_noise(PrivacyPlan(1.0, 2.33, SinglePass(1600)))
    >>> state = noise.init(jnp.zeros(3))
    >>> int(state.step), state.run.shape
    (0, (4,))
    """

    step: Any
    run: Any


class ResidualNoise(optax.GradientTransformationExtraArgs):  # type: ignore[misc]
    """Transformation that `residual_noise` returns; it holds the key of the noise, **a secret**.

    Keep it beside the chain that it is part of, to save and resume the run.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, SinglePass
    >>> plan = PrivacyPlan(1.0, 2.33, SinglePass(1600))
    >>> noise, sums = residual_noise(plan), jnp.ones(3)
    >>> _, state = noise.update(sums, noise.init(sums))
    >>> resumed = residual_noise(plan)
    >>> _ = resumed.init(sums)
    >>> resumed.load_state_dict(noise.state_dict())
    >>> _, state = resumed.update(sums, state)
    >>> resumed.steps_taken
    2
    """

    _host: HostNoise

    def __new__(cls, host: HostNoise, axis_name: str | None, ffi: bool) -> ResidualNoise:
        """Make the two functions of the transformation."""
        call = Caller(host, axis_name=axis_name, ffi=ffi)

        def init(params: Any) -> ResidualNoiseState:
            host.start(_leaves(params))
            return ResidualNoiseState(jnp.int32(0), jnp.asarray(host.run))

        def update(
            updates: Any, state: ResidualNoiseState, params: Any = None, **extra: Any
        ) -> tuple[Any, ResidualNoiseState]:
            sums, tree = jax.tree.flatten(updates)
            host.start(_leaves(updates))
            _check_sums(updates, host.dtype)
            results = [jax.ShapeDtypeStruct((), jnp.int32)]
            results += [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in sums]
            reused = {2 + i: 1 + i for i in range(len(sums))}
            step, *noisy = call(results, state.step, state.run, *sums, reused=reused)
            return jax.tree.unflatten(tree, noisy), ResidualNoiseState(step, state.run)

        made: ResidualNoise = super().__new__(cls, init, update)
        made._host = host
        return made

    @property
    def plan(self) -> PrivacyPlan:
        """Source of the noise and of the stated epsilon."""
        return self._host.plan

    @property
    def steps_taken(self) -> int:
        """Steps taken, over all blocks, by everything that was dispatched before."""
        _wait()
        return self._host.steps_taken

    @property
    def reproducible(self) -> bool:
        """True when a seed was given: whoever guesses it can remove the noise."""
        return self._host.reproducible

    def state_dict(self) -> dict[str, Any]:
        """Return key, position and kept vectors: **a secret**, to be saved beside each checkpoint.

        It belongs to the state of the transformation after everything that was dispatched before.
        The values are text, numbers, lists and NumPy arrays.

        Raises
        ------
        ValueError
            Before the first call of ``init``.
        """
        _wait()
        return self._host.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, allow_fork: bool = False) -> None:
        """Resume from a state of `state_dict`, after ``init`` with parameters of the same shapes.

        Nothing may have been released of steps after that state, or they must be repeated with the
        same sums: other sums with the same noise reveal their difference.

        Parameters
        ----------
        state : mapping
            Of a noise with the same plan, leaves and batch size.
        allow_fork : bool
            True lets this object return to an earlier step of its own; it voids the guarantee if
            anything of the steps in between was released.

        Raises
        ------
        TypeError, ValueError
            If it is not such a state. Nothing has changed then.
        """
        _wait()
        self._host.load_state_dict(state, allow_fork=allow_fork)

    def save(self, path: str | Path) -> None:
        """Write `state_dict` to a file for its owner only (mode 0600), whole or not at all."""
        write_sealed(Path(path), self.state_dict(), _SEAL, _LABEL)

    def load(self, path: str | Path) -> None:
        """Resume from a file of `save`, as `load_state_dict`; ValueError if it is damaged."""
        self.load_state_dict(read_sealed(Path(path), _SEAL, _LABEL))

    def __reduce__(self) -> Any:
        """Refuse to be pickled or copied: the key is secret."""
        raise TypeError("residual_noise holds a secret key and is not pickled; use state_dict()")

    def __repr__(self) -> str:
        """Return a text without the key."""
        return f"residual_noise(steps={self.plan.steps}, steps_taken={self._host.steps_taken})"


def residual_noise(
    plan: PrivacyPlan,
    *,
    batch_size: int | None = None,
    dtype: Literal["float32", "float64"] = "float32",
    memory: Memory = "stored",
    threads: int | None = None,
    noise_seed: Seed = None,
    key: bytes | None = None,
    axis_name: str | None = None,
    transport: Transport = "auto",
) -> ResidualNoise:
    """Return a transformation that adds the noise of a plan to clipped gradient **sums**.

    At step t it adds a_t = n_t - n_(t-1), where n_t is the noise of the running sum: SGD on the
    results is DP-FTRL (Kairouz et al. 2021, theorem 5.1), and Adam or any other use of them is as
    private. Put it first in ``optax.chain``, before everything that changes the sums.

    ``update`` takes the sum over the batch of clipped per-example gradients, as
    :func:`dpftrl_fast.jax.clipped_grad` returns it: not their mean, whose noise would be
    `batch_size` times too large. With `batch_size` it returns the noisy sum divided by it, the
    noisy mean that an optimiser expects.

    Parameters
    ----------
    plan : PrivacyPlan
        Source of the noise, with its mechanism and restarts, and of the stated epsilon.
    batch_size : int, optional
        Noisy sums are divided by it: fixed and public, never the number of examples that happen to
        be in a batch.
    dtype : {"float32", "float64"}
        Of the noise. Sums are float32; float64 sums need float64 noise.
    memory, threads
        As for :class:`dpftrl_fast.TreeNoise`.
    noise_seed : int or bytes, optional
        For tests: the noise can be removed by anyone who guesses it. By default the key comes from
        the operating system.
    key : bytes, optional
        Secret key of 32 bytes, instead of a new one.
    axis_name : str, optional
        Axis of a ``jax.shard_map`` in which ``update`` is called, with sums that were added up over
        it (``jax.lax.psum``): one device takes the step, and all get its result.
    transport : {"auto", "ffi", "callback"}
        Path of the sums to the noise and back. "ffi" writes into XLA's buffers on one CPU device;
        "callback" copies them, from any device or several. "auto" chooses "ffi" where JAX has one
        device, a CPU, and for `axis_name` on CPUs.

    Returns
    -------
    ResidualNoise
        ``init`` and ``update``, and the run: ``steps_taken``, ``state_dict``, ``save``.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above. ``update`` refuses leaves other than those of the first
        call, and sums that are neither float32 nor float64 (bfloat16 sums round by more than the
        margin of the clipping). Compiled calls raise ``jax.errors.JaxRuntimeError`` for a state
        that was used before, one of another run, and a step past the plan's last.

    Notes
    -----
    **Formal guarantee.** As for :class:`dpftrl_fast.torch.ResidualNoise`: for neighbouring data
    sets in which the gradients of one example are replaced by zero, the results of all steps
    together are (epsilon, delta)-differentially private with the epsilon of ``plan.epsilon(delta)``
    (``neighbours="replace-one"`` for a replaced example). The caller must ensure that sums are
    clipped to ``plan.clip_norm``, that examples take part only as ``plan.participation`` declares
    (``plan.guard()`` checks ids before each step), that nothing else of the gradients is released,
    and that the object and its ``state_dict()`` stay secret. Results are on a public grid, with the
    remainders carried along: docs/guarantees/floating_point.md.

    The state of the transformation is public and is saved with the optimiser's. It works in
    ``jax.jit`` and ``jax.lax.scan``, with donated buffers, and is not dropped when its result is
    unused. ``jax.vmap`` and ``jax.grad`` over it are refused.

    Examples
    --------
    >>> import jax, optax
    >>> import jax.numpy as jnp
    >>> from dpftrl_fast import PrivacyPlan, SinglePass
    >>> from dpftrl_fast.optax import residual_noise
    >>> plan = PrivacyPlan(1.0, 2.33, SinglePass(1600))
    >>> noise = residual_noise(plan, batch_size=256)
    >>> optimizer = optax.chain(noise, optax.adam(0.01))
    >>> params = {"w": jnp.zeros(3)}
    >>> state = optimizer.init(params)
    >>> sums = {"w": jnp.array([10.0, -3.0, 0.0])}  # of clipped gradients
    >>> updates, state = jax.jit(optimizer.update)(sums, state, params)
    >>> params = optax.apply_updates(params, updates)
    >>> noise.steps_taken
    1
    """
    host = HostNoise(
        plan,
        batch_size=batch_size,
        dtype=dtype,
        memory=memory,
        threads=threads,
        noise_seed=noise_seed,
        key=key,
    )
    way = choice("transport", transport, ("auto", "ffi", "callback"))
    alone = axis_name is not None or jax.device_count() == 1
    ffi = way == "ffi" or (way == "auto" and alone and jax.default_backend() == "cpu")
    return ResidualNoise(host, axis_name, ffi)


def _leaves(tree: Any) -> Leaves:
    entries, _ = jax.tree_util.tree_flatten_with_path(tree)
    return tuple((jax.tree_util.keystr(path), tuple(np.shape(x))) for path, x in entries)


def _check_sums(tree: Any, dtype: str) -> None:
    for path, x in jax.tree_util.tree_flatten_with_path(tree)[0]:
        where = jax.tree_util.keystr(path) and f" in {jax.tree_util.keystr(path)}"
        if x.dtype not in _SUMS:
            raise TypeError(
                "gradient sums must be float32 or float64, also those of bfloat16 parameters, got "
                f"{x.dtype}{where}"
            )
        if x.dtype == np.float64 and dtype != "float64":
            raise TypeError(f"float64 sums need noise of dtype='float64', got {dtype!r}{where}")


def _wait() -> None:
    """Wait for the steps that were dispatched; their errors are for who uses their results."""
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        jax.effects_barrier()
