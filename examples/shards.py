# SPDX-License-Identifier: Apache-2.0
"""Split one vector over two processes: each makes its slice of the same noise.

`python examples/shards.py`
"""

import multiprocessing
import secrets

import numpy as np

import dpftrl_fast as dpf

SIZE, STEPS = 1_000_000, 5


def last_step(key: bytes, offset: int, size: int) -> np.ndarray:
    """Return the noise of this shard at the last step. The key is a secret of the processes."""
    noise = dpf.TreeNoise(size, std=1.0, key=key, offset=offset)
    noise.advance_to(STEPS - 1)
    return noise.step()


def main() -> None:
    """Compare the shards with the whole vector."""
    key = secrets.token_bytes(32)
    half = SIZE // 2
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        shards = pool.starmap(last_step, [(key, 0, half), (key, half, SIZE - half)])
    whole = last_step(key, 0, SIZE)
    print("the same bits:", np.array_equal(np.concatenate(shards), whole))


if __name__ == "__main__":
    main()
