# SPDX-License-Identifier: Apache-2.0
"""`residual_noise`: SGD and Adam are those of a NumPy loop; a step's noise is added once."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optax_cases as cases
import pytest
from mechanism_cases import MECHANISMS

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

import jax.numpy as jnp  # noqa: E402

from dpftrl_fast import PrivacyPlan, accounting  # noqa: E402
from dpftrl_fast.mechanisms import Tree  # noqa: E402
from dpftrl_fast.optax import ResidualNoise, residual_noise  # noqa: E402

JaxError = jax.errors.JaxRuntimeError
TRANSPORTS = ["ffi", "callback"]
RULES = {"sgd": (optax.sgd, cases.Sgd), "adam": (optax.adam, cases.Adam)}


def plan_of(mechanism: Any = Tree(), steps: int = 13) -> PrivacyPlan:
    return PrivacyPlan(1.0, 0.5, accounting.SinglePass(steps), mechanism=mechanism)


PLAN = plan_of(MECHANISMS["trees"])


def noise_of(plan: PrivacyPlan = PLAN, **options: Any) -> ResidualNoise:
    given: dict[str, Any] = {"batch_size": cases.BATCH, "noise_seed": cases.SEED, **options}
    return residual_noise(plan, **given)


def parameters(dtype: Any = np.float32) -> Any:
    return jax.tree.map(jnp.asarray, cases.unflattened(cases.first_parameters().astype(dtype)))


def sums_of(params: Any, row: Any) -> Any:
    return jax.tree.map(lambda p, r: p - r, params, row)


def rows(steps: int, dtype: Any = np.float32) -> Any:
    made = [cases.unflattened(row) for row in cases.targets(steps).astype(dtype)]
    return jax.tree.map(lambda *x: jnp.stack(x), *made)


def step_of(optimizer: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        params, state = carry
        updates, state = optimizer.update(sums_of(params, row), state, params)
        return (optax.apply_updates(params, updates), state), None

    return step


def train(optimizer: Any, way: str, steps: int, dtype: Any = np.float32) -> Any:
    params = parameters(dtype)
    carry = params, optimizer.init(params)
    step, every = step_of(optimizer), rows(steps, dtype)
    if way == "scan":
        return jax.jit(lambda c: jax.lax.scan(step, c, every)[0])(carry)
    if way == "jit":
        # The buffers of a step are given to the next one.
        step = jax.jit(step, donate_argnums=0)
    for t in range(steps):
        carry, _ = step(carry, jax.tree.map(lambda x, t=t: x[t], every))
    return carry


# ---- The NumPy loop ----


@pytest.mark.parametrize("way", ["jit", "scan"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", MECHANISMS)
def test_training_is_the_numpy_loop(name: str, rule: str, way: str) -> None:
    plan = plan_of(MECHANISMS[name])
    make, oracle = RULES[rule]
    # Without x64, Optax's 1 - 0.999^t has a relative error of 6e-5.
    with jax.enable_x64(rule == "adam"):
        optimizer = optax.chain(noise_of(plan), make(cases.RATE))
        params, _ = train(optimizer, way, plan.steps)
    expected = cases.trained(plan, oracle(), np.float32, np.float32)
    np.testing.assert_allclose(cases.flat(params), expected, rtol=0, atol=1e-6)
    other = cases.trained(plan.with_noise(0.6), oracle(), np.float32, np.float32)
    assert np.abs(cases.flat(params) - other).max() > 1e-4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sums", ["float32", "float64"])
def test_dtypes(sums: str, dtype: Any) -> None:
    if (sums, dtype) == ("float64", "float32"):
        pytest.skip("refused")
    with jax.enable_x64(True):
        noise = noise_of(dtype=dtype)
        optimizer = optax.chain(noise, optax.adam(cases.RATE))
        params, _ = train(optimizer, "scan", PLAN.steps, sums)
    expected = cases.trained(PLAN, cases.Adam(), dtype, sums)
    assert cases.flat(params).dtype == sums
    limit = 1e-6 if sums == "float32" else 1e-12
    np.testing.assert_allclose(cases.flat(params), expected, rtol=0, atol=limit)


def test_leaves_of_both_dtypes_are_the_bits_of_torch() -> None:
    torch = pytest.importorskip("torch")
    from dpftrl_fast.torch import ResidualNoise as TorchNoise

    with jax.enable_x64(True):
        rng = np.random.default_rng(2)
        values = {"a": rng.standard_normal((3, 5)).astype(np.float32), "b": rng.standard_normal(7)}
        noise = noise_of(batch_size=3, dtype="float64")
        members = [torch.nn.Parameter(torch.from_numpy(value)) for value in values.values()]
        theirs = TorchNoise(
            members, plan=PLAN, batch_size=3, noise_seed=cases.SEED, dtype="float64"
        )
        sums = jax.tree.map(jnp.asarray, values)
        state, update = noise.init(sums), jax.jit(noise.update)
        for _ in range(PLAN.steps):
            released, state = update(sums, state)
            for p, value in zip(members, values.values(), strict=True):
                p.grad = torch.from_numpy(value.copy())
            theirs.add_()
            for p, name in zip(members, values, strict=True):
                assert np.array_equal(np.asarray(released[name]), p.grad.numpy())


def test_transports_and_threads_give_the_same_bits() -> None:
    size = 2**21 + 77  # more than one thread's share, in two leaves
    sums = {"a": jnp.ones(2**21 - 5), "b": jnp.ones(82)}
    found = []
    for options in ({"transport": "ffi", "threads": 2}, {"transport": "callback", "threads": 1}):
        noise = noise_of(**options)
        state, update = noise.init(sums), jax.jit(noise.update)
        for _ in range(2):
            out, state = update(sums, state)
        found.append(np.concatenate([np.asarray(out["a"]), np.asarray(out["b"])]))
    assert found[0].size == size
    assert np.array_equal(*found)


def test_outside_of_jit() -> None:
    optimizer = optax.chain(noise_of(), optax.sgd(cases.RATE))
    params, _ = train(optimizer, "eager", 4)
    compiled, _ = train(optax.chain(noise_of(), optax.sgd(cases.RATE)), "scan", 4)
    np.testing.assert_allclose(cases.flat(params), cases.flat(compiled), rtol=0, atol=1e-6)


def test_without_a_batch_size_the_sum_is_returned() -> None:
    sums = {"w": jnp.array([10.0, -3.0])}
    means, both = noise_of(), noise_of(batch_size=None)
    mean, _ = means.update(sums, means.init(sums))
    total, _ = both.update(sums, both.init(sums))
    assert np.array_equal(np.asarray(total["w"]) / cases.BATCH, np.asarray(mean["w"]))
    grid = PLAN.noise(2).grid
    assert np.array_equal(np.asarray(total["w"]) % grid, [0, 0])


# ---- One noise, one sum ----


@pytest.fixture(params=TRANSPORTS)
def begun(request: pytest.FixtureRequest) -> Iterator[tuple[ResidualNoise, Any, Any, Any]]:
    noise = noise_of(transport=request.param)
    sums = {"w": jnp.ones(4)}
    yield noise, jax.jit(noise.update), sums, noise.init(sums)


def test_a_state_is_used_once(begun: Any) -> None:
    noise, update, sums, state = begun
    first, following = update(sums, state)
    with pytest.raises(JaxError, match="at step 0, but this noise has taken step 1"):
        jax.block_until_ready(update(jax.tree.map(lambda x: 2 * x, sums), state))
    assert noise.steps_taken == 1
    # The run goes on as if nothing had happened.
    second, _ = update(sums, following)
    fresh = noise_of()
    want, at = fresh.update(sums, fresh.init(sums))
    assert np.array_equal(np.asarray(first["w"]), np.asarray(want["w"]))
    want, _ = fresh.update(sums, at)
    assert np.array_equal(np.asarray(second["w"]), np.asarray(want["w"]))


def test_a_state_ahead_and_one_of_another_run_are_refused(begun: Any) -> None:
    noise, update, sums, state = begun
    with pytest.raises(JaxError, match="at step 1, but this noise only at step 0"):
        jax.block_until_ready(update(sums, state._replace(step=jnp.int32(1))))
    with pytest.raises(JaxError, match="of another run"):
        jax.block_until_ready(update(sums, noise_of().init(sums)))
    assert noise.steps_taken == 0


def test_no_step_past_the_last(begun: Any) -> None:
    noise, update, sums, state = begun
    for _ in range(PLAN.steps):
        _, state = update(sums, state)
    with pytest.raises(JaxError, match="all 13 declared steps are taken"):
        jax.block_until_ready(update(sums, state))
    assert noise.steps_taken == PLAN.steps


def test_a_result_that_is_unused_takes_its_step(begun: Any) -> None:
    noise, _, sums, state = begun

    def step(state: Any) -> Any:
        _, following = noise.update(sums, state)
        return following

    jax.jit(lambda s: (noise.update(sums, s), s)[1])(state)
    assert noise.steps_taken == 1
    jax.jit(lambda s: noise.update(sums, s) and None)(state._replace(step=jnp.int32(1)))
    assert noise.steps_taken == 2
    jax.jit(step)(state._replace(step=jnp.int32(2)))
    assert noise.steps_taken == 3


def test_two_calls_of_one_program_are_not_merged(begun: Any) -> None:
    noise, _, sums, state = begun

    def twice(state: Any) -> Any:
        return noise.update(sums, state), noise.update(sums, state)

    with pytest.raises(JaxError, match="has taken step 1"):
        jax.block_until_ready(jax.jit(twice)(state))


def test_tracing_takes_no_step(begun: Any) -> None:
    noise, update, sums, state = begun
    jax.eval_shape(noise.update, sums, state)
    jax.make_jaxpr(noise.update)(sums, state)
    compiled = update.lower(sums, state).compile()
    assert noise.steps_taken == 0
    _, state = compiled(sums, state)
    _, state = jax.jit(lambda g, s: noise.update(g, s))(sums, state)  # traced again
    assert noise.steps_taken == int(state.step) == 2


def test_scan_compiles_once(begun: Any) -> None:
    noise, _, sums, state = begun
    traces = []

    @jax.jit
    def run(state: Any) -> Any:
        def body(s: Any, _: Any) -> Any:
            traces.append(1)
            out, s = noise.update(sums, s)
            return s, out

        return jax.lax.scan(body, state, None, length=3)

    state, first = run(state)
    count = len(traces)
    state, second = run(state)
    assert len(traces) == count
    released = np.concatenate([np.asarray(first["w"]), np.asarray(second["w"])])
    assert len({row.tobytes() for row in released}) == 6


def test_vmap_and_grad_are_refused(begun: Any) -> None:
    noise, _, sums, state = begun
    many = jax.tree.map(lambda x: jnp.stack([x, x]), sums)
    with pytest.raises(TypeError, match=r"outside of jax\.vmap, got one for 2 cases"):
        jax.vmap(noise.update, in_axes=(0, None))(many, state)
    with pytest.raises(ValueError):
        jax.grad(lambda g: noise.update(g, state)[0]["w"].sum())(sums)
    assert noise.steps_taken == 0


def test_results_do_not_change_later(begun: Any) -> None:
    _, update, sums, state = begun
    kept = []
    for _ in range(4):
        out, state = update(sums, state)
        kept.append((out["w"], np.array(out["w"], copy=True)))
    assert np.array_equal(np.asarray(sums["w"]), np.ones(4))
    for released, copy in kept:
        assert np.array_equal(np.asarray(released), copy)


def test_a_donated_sum_is_the_result() -> None:
    noise, other = noise_of(), noise_of()
    sums = {"w": jnp.arange(100.0)}
    want, _ = other.update(sums, other.init(sums))
    out, _ = jax.jit(noise.update, donate_argnums=(0, 1))(sums, noise.init(sums))
    assert sums["w"].is_deleted()
    assert np.array_equal(np.asarray(out["w"]), np.asarray(want["w"]))


def test_a_source_does_not_write_into_arrays_of_jax() -> None:
    source = PLAN.noise(4)
    with pytest.raises((TypeError, ValueError)):
        source.residual(out=jnp.zeros(4))
    assert source.steps_taken == 0
    # The trap of docs/frameworks/jax.md: memory that was lent to JAX before.
    memory = np.zeros(1024 + 16, np.float32)
    x = memory[-memory.ctypes.data % 64 // 4 :][:1024]
    lent = jnp.from_dlpack(x)
    x[:] = 1
    assert float(lent[0]) == 1


def test_a_lost_object_ends_its_functions() -> None:
    sums = {"w": jnp.ones(4)}

    def made() -> Any:
        noise = noise_of()
        state = noise.init(sums)
        return jax.jit(noise.update).lower(sums, state).compile(), state

    compiled, state = made()
    with pytest.raises(JaxError, match="is gone, and with it the noise's key"):
        jax.block_until_ready(compiled(sums, state))


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_a_fork_makes_no_noise() -> None:
    noise = residual_noise(PLAN)
    state = noise.init({"w": jnp.ones(2)})
    arguments = [np.asarray(state.step), np.asarray(state.run), np.ones(2, np.float32)]
    results = [np.empty((), np.int32), np.empty(2, np.float32)]
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            noise._host.called(arguments, results)
            answer = b"made"
        except RuntimeError as error:
            answer = str(error).encode()
        os.write(write, answer)
        os._exit(0)
    os.waitpid(pid, 0)
    assert b"forked" in os.read(read, 1000)
    os.close(read)
    os.close(write)
    noise._host.called(arguments, results)


# ---- Saving and resuming ----


def saved_by_numpy(folder: Path, carry: Any) -> Any:
    leaves, tree = jax.tree.flatten(carry)
    np.savez(folder / "carry.npz", *map(np.asarray, leaves))
    with np.load(folder / "carry.npz", allow_pickle=False) as file:
        return jax.tree.unflatten(tree, [jnp.asarray(file[name]) for name in file.files])


def saved_by_orbax(folder: Path, carry: Any) -> Any:
    ocp = pytest.importorskip("orbax.checkpoint")
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "carry", carry)
        checkpointer.wait_until_finished()
        return checkpointer.restore(folder / "carry", carry)


@pytest.mark.parametrize("way", [saved_by_numpy, saved_by_orbax])
@pytest.mark.parametrize("name", ["tree", "trees", "four taps", "two buffers", "bands"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_resuming_gives_the_same_bits(name: str, way: Any, tmp_path: Path) -> None:
    plan = plan_of(MECHANISMS[name])
    # The keys are of the operating system.
    noise = residual_noise(plan, batch_size=8)
    optimizer = optax.chain(noise, optax.adam(cases.RATE))
    carry = parameters(), optimizer.init(parameters())
    step, every = jax.jit(step_of(optimizer)), rows(plan.steps)
    for t in range(plan.steps):
        if t == 6:
            noise.save(tmp_path / "noise.secret")
            restored = way(tmp_path, carry)
        carry, _ = step(carry, jax.tree.map(lambda x, t=t: x[t], every))
    again = residual_noise(plan, batch_size=8)
    optimizer = optax.chain(again, optax.adam(cases.RATE))
    optimizer.init(parameters())
    again.load(tmp_path / "noise.secret")
    assert again.steps_taken == 6 and not again.reproducible
    step = jax.jit(step_of(optimizer))
    for t in range(6, plan.steps):
        restored, _ = step(restored, jax.tree.map(lambda x, t=t: x[t], every))
    for ours, theirs in zip(*map(jax.tree.leaves, (carry, restored)), strict=True):
        assert np.array_equal(np.asarray(ours), np.asarray(theirs))
    assert (tmp_path / "noise.secret").stat().st_mode & 0o777 == 0o600


def test_a_state_without_its_noise_is_refused(tmp_path: Path) -> None:
    sums = {"w": jnp.ones(2)}
    noise = residual_noise(PLAN)
    _, state = noise.update(sums, noise.init(sums))
    fresh = residual_noise(PLAN)
    fresh.init(sums)
    with pytest.raises(JaxError, match="of another run"):
        jax.block_until_ready(fresh.update(sums, state))
    fresh.load_state_dict(noise.state_dict())
    fresh.update(sums, state)
    with pytest.raises(ValueError, match="noise would be used twice"):
        fresh.load_state_dict(noise.state_dict())
    fresh.load_state_dict(noise.state_dict(), allow_fork=True)
    assert fresh.steps_taken == 1


def test_states_that_are_refused() -> None:
    noise = noise_of()
    with pytest.raises(ValueError, match="expected a call of init"):
        noise.state_dict()
    sums = {"w": jnp.ones(2)}
    noise.update(sums, noise.init(sums))
    good = noise.state_dict()
    for change, words in [
        ({"batch_size": 9}, "batch_size 9, but this object has 8"),
        ({"leaves": [["['v']", [2]]]}, "state has leaves"),
        ({"version": 2}, "state has version 2"),
        ({"plan": plan_of().to_dict()}, "state has plan"),
        ({"run": "12"}, "32 hexadecimal digits"),
        ({"remainder": np.zeros(3, np.float32)}, "remainder must be"),
        ({"remainder": np.zeros(2)}, "remainder must be"),
    ]:
        with pytest.raises(ValueError, match=words):
            noise.load_state_dict({**good, **change})
    del good["run"]
    with pytest.raises(ValueError, match="state lacks run"):
        noise.load_state_dict(good)
    with pytest.raises(TypeError, match="state must be a mapping, got int"):
        noise.load_state_dict(3)  # type: ignore[arg-type]
    assert noise.steps_taken == 1


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    noise = noise_of()
    noise.init({"w": jnp.ones(2)})
    path = tmp_path / "noise.secret"
    noise.save(path)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ValueError, match="is damaged"):
        noise.load(path)


def test_a_saved_noise_is_that_of_the_dispatched_steps() -> None:
    noise = noise_of()
    size = 2**20
    state = noise.init({"w": jnp.ones(size)})

    @jax.jit
    def slow(state: Any) -> Any:
        m = jnp.ones((700, 700))
        for _ in range(20):
            m = jnp.sin(m @ m)
        return noise.update({"w": jnp.ones(size) * m[0, 0]}, state)

    _, state = slow(state)
    assert noise.state_dict()["noise"]["t"] == 1
    assert noise.steps_taken == int(state.step)


def test_the_key_is_nowhere_but_in_the_secret_state() -> None:
    key = bytes(range(32))
    noise = residual_noise(PLAN, key=key)
    sums = {"w": jnp.ones(2)}
    _, state = noise.update(sums, noise.init(sums))
    assert noise.state_dict()["noise"]["key"] == key.hex()
    assert repr(noise) == "residual_noise(steps=13, steps_taken=1)"
    words = {int.from_bytes(key[i : i + 4], "little") for i in range(0, 32, 4)}
    assert not words & set(np.asarray(state.run).tolist())
    with pytest.raises(TypeError, match="holds a secret key"):
        pickle.dumps(noise)
    with pytest.raises(JaxError) as caught:
        jax.block_until_ready(noise.update(sums, noise.init(sums)))
    assert key.hex() not in str(caught.value)


# ---- Wrong calls ----


def test_sums_that_are_refused() -> None:
    noise = noise_of()
    state = noise.init({"w": jnp.ones(2, jnp.bfloat16)})
    with pytest.raises(TypeError, match=r"float32 or float64, .* got bfloat16 in \['w'\]"):
        noise.update({"w": jnp.ones(2, jnp.bfloat16)}, state)
    with pytest.raises(TypeError, match="got int32"):
        noise.update({"w": jnp.ones(2, jnp.int32)}, state)
    with jax.enable_x64(True), pytest.raises(TypeError, match="need noise of dtype='float64'"):
        noise.update({"w": jnp.ones(2, jnp.float64)}, state)
    # Sums of bfloat16 parameters are float32.
    out, _ = noise.update({"w": jnp.ones(2)}, state)
    assert out["w"].dtype == np.float32


@pytest.mark.parametrize("other", [{"v": (2,)}, {"w": (3,)}, {"w": (2,), "x": (1,)}, {"w": (2, 1)}])
def test_other_leaves_are_refused(other: Any) -> None:
    noise = noise_of()
    state = noise.init({"w": jnp.ones(2)})
    with pytest.raises(ValueError, match="expected the leaves that this noise began with"):
        noise.update({name: jnp.ones(shape) for name, shape in other.items()}, state)


def test_arguments_that_are_refused() -> None:
    for options, error in [
        ({"batch_size": 0}, ValueError),
        ({"batch_size": 2.5}, TypeError),
        ({"dtype": "float16"}, ValueError),
        ({"noise_seed": 1.5}, TypeError),
        ({"noise_seed": 1, "key": bytes(32)}, ValueError),
        ({"transport": "pipe"}, ValueError),
        ({"memory": "none"}, ValueError),
    ]:
        with pytest.raises(error):
            residual_noise(PLAN, **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="plan must be a PrivacyPlan, got float"):
        residual_noise(1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at most 2\\^31 - 1 steps"):
        residual_noise(plan_of(steps=2**31))
    with pytest.raises(ValueError, match="at least one coordinate"):
        noise_of().init({})


def test_parts_of_a_model_without_noise() -> None:
    """Leaves that optax masks have none: they are not trained."""
    noise = noise_of()
    frozen = {"a": True, "b": False}
    transformed = optax.masked(noise, frozen)
    sums = {"a": jnp.ones(3), "b": jnp.ones(2)}
    out, _ = transformed.update(sums, transformed.init(sums))
    assert np.array_equal(np.asarray(out["b"]), np.ones(2))
    alone = noise_of()
    want, _ = alone.update({"a": jnp.ones(3)}, alone.init({"a": jnp.ones(3)}))
    assert np.array_equal(np.asarray(out["a"]), np.asarray(want["a"]))
