# SPDX-License-Identifier: Apache-2.0
"""Program of tests/jax/test_devices.py: a sum on four devices, and 64-bit callbacks."""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from dpftrl_fast import PrivacyPlan, SinglePass
from dpftrl_fast.optax import residual_noise

PLAN = PrivacyPlan(1.0, 2.0, SinglePass(3))


def refusal(call: Any) -> str:
    try:
        jax.block_until_ready(call())
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        return str(error)
    return "none"


def main() -> None:
    mesh = jax.make_mesh((4,), ("data",))
    axis, everywhere = PartitionSpec("data"), PartitionSpec()
    sums = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, axis))
    found: dict[str, Any] = {"devices": jax.device_count(), "dtype": str(sums.dtype)}

    for transport in ("ffi", "callback", "auto"):
        noise = residual_noise(
            PLAN, noise_seed=1, axis_name="data", transport=transport, dtype=str(sums.dtype)
        )

        def step(local: Any, state: Any, noise: Any = noise) -> Any:
            return noise.update(jax.lax.psum(local, "data"), state)

        update = jax.jit(
            jax.shard_map(
                step, mesh=mesh, in_specs=(axis, everywhere), out_specs=(everywhere, everywhere)
            )
        )
        state, released = noise.init(jnp.zeros(2)), []
        for _ in range(3):
            out, state = update(sums, state)
            released.append(np.asarray(out).tolist())
        found[transport] = released, noise.steps_taken
        found[f"{transport}, past the end"] = refusal(
            lambda update=update, state=state: update(sums, state)
        )

        def forgotten(local: Any, state: Any, noise: Any = noise) -> Any:
            return noise.update(local, state)

        found[f"{transport}, forgotten"] = refusal(
            lambda forgotten=forgotten, state=state: jax.jit(
                jax.shard_map(
                    forgotten, mesh=mesh, in_specs=(axis, everywhere), out_specs=(axis, everywhere)
                )
            )(sums, state)
        )

    # The whole array in one program: one device calls.
    noise = residual_noise(PLAN, noise_seed=1, dtype=str(sums.dtype))
    out, _ = jax.jit(noise.update)(sums, noise.init(jnp.zeros(8)))
    found["whole"] = np.asarray(out).tolist(), noise.steps_taken

    # Without axis_name every device calls: the second one is refused.
    noise = residual_noise(PLAN, noise_seed=1, dtype=str(sums.dtype))

    def each(local: Any, state: Any) -> Any:
        return noise.update(jax.lax.psum(local, "data"), state)

    found["each"] = refusal(
        lambda: jax.jit(
            jax.shard_map(
                each, mesh=mesh, in_specs=(axis, everywhere), out_specs=(everywhere, everywhere)
            )
        )(sums, noise.init(jnp.zeros(2)))
    )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
