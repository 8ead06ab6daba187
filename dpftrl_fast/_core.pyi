# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

STREAM_VERSION: int

def build_info() -> dict[str, Any]: ...
def normals_f32(
    target: str,
    key: bytes,
    rounds: int,
    purpose: int,
    tree: int,
    level: int,
    index: int,
    first: int,
    scale: float,
    out: NDArray[np.float32],
) -> None: ...
def normals_f64(
    target: str,
    key: bytes,
    rounds: int,
    purpose: int,
    tree: int,
    level: int,
    index: int,
    first: int,
    scale: float,
    out: NDArray[np.float64],
) -> None: ...
def keystream16(
    target: str, key: bytes, rounds: int, counter: NDArray[np.uint32], out: NDArray[np.uint32]
) -> None: ...
def normal_pair_f32(radius: int, angle: int) -> tuple[float, float]: ...
def normal_pair_f64(radius: int, angle: int, extension: int) -> tuple[float, float]: ...

class _Source:
    def step(self, out: NDArray[Any] | None) -> NDArray[Any]: ...
    def residual(self, out: NDArray[Any] | None) -> NDArray[Any]: ...
    def steps(self, out: NDArray[Any], rows: int, first: int, count: int) -> None: ...
    def release(
        self,
        pieces: NDArray[np.int64],
        at: NDArray[np.int64],
        remainder: NDArray[Any],
        grid: float,
        divisor: float,
    ) -> None: ...
    def prefix(self, t: int, out: NDArray[Any] | None) -> NDArray[Any]: ...
    def advance_to(self, t: int) -> None: ...
    @property
    def t(self) -> int: ...
    @property
    def allocated_vectors(self) -> int: ...
    def position(self) -> tuple[int, list[int], int, int]: ...

class _Tree(_Source):
    def __init__(
        self,
        *,
        size: int,
        std: float,
        key: bytes,
        rounds: int,
        purpose: int,
        offset: int,
        variant: str,
        memory: int,
        threads: int,
        target: str | None,
    ) -> None: ...
    def node(self, level: int, index: int, out: NDArray[Any] | None) -> NDArray[Any]: ...
    def restart(self, complete: bool) -> None: ...
    @property
    def tree(self) -> int: ...
    def saved(
        self,
    ) -> tuple[int, list[int], int, int, list[tuple[str, int, int, NDArray[Any]]]]: ...
    def set_position(
        self,
        t: int,
        ends: list[int],
        last_tree: int,
        last_t: int,
        vectors: list[tuple[str, int, int, NDArray[Any]]],
    ) -> None: ...

class _Toeplitz(_Source):
    def __init__(
        self,
        *,
        size: int,
        std: float,
        key: bytes,
        rounds: int,
        purpose: int,
        offset: int,
        kind: str,
        first: Sequence[float],
        second: Sequence[float],
        memory: int,
        threads: int,
        target: str | None,
    ) -> None: ...
    def current(self, out: NDArray[Any] | None) -> NDArray[Any]: ...
    def restart(self) -> None: ...
    @property
    def block(self) -> int: ...
    def saved(self) -> tuple[int, list[int], int, int, list[tuple[str, int, NDArray[Any]]]]: ...
    def set_position(
        self,
        t: int,
        ends: list[int],
        last_block: int,
        last_t: int,
        vectors: list[tuple[str, int, NDArray[Any]]],
    ) -> None: ...

class TreeFloat32(_Tree): ...
class TreeFloat64(_Tree): ...
class ToeplitzFloat32(_Toeplitz): ...
class ToeplitzFloat64(_Toeplitz): ...

def prefix_error(
    trees: Sequence[tuple[int, int, bool]],
    variant: str,
    momentum: float,
    variance: NDArray[np.float64],
    smoothed: NDArray[np.float64],
) -> None: ...
def solve_banded(
    band: NDArray[np.float64], x: NDArray[np.float64], out: NDArray[np.float64]
) -> None: ...
def solve_buffers(
    decay: NDArray[np.float64],
    scale: NDArray[np.float64],
    x: NDArray[np.float64],
    out: NDArray[np.float64],
) -> None: ...
def buffers_column(
    decay: NDArray[np.float64], scale: NDArray[np.float64], out: NDArray[np.float64]
) -> None: ...
def workload_error(
    inverse: NDArray[np.float64],
    momentum: float,
    decay: float,
    rates: NDArray[np.float64] | None,
    blocks: Sequence[tuple[int, int]],
    variance: NDArray[np.float64],
) -> None: ...
def workload_error_buffers(
    decay: NDArray[np.float64],
    scale: NDArray[np.float64],
    momentum: float,
    weight_decay: float,
    rates: NDArray[np.float64] | None,
    blocks: Sequence[tuple[int, int]],
    variance: NDArray[np.float64],
) -> None: ...
def workload_error_trees(
    trees: Sequence[tuple[int, int, bool]],
    variant: str,
    momentum: float,
    decay: float,
    rates: NDArray[np.float64] | None,
    variance: NDArray[np.float64],
) -> None: ...
def workload_objective(
    c: NDArray[np.float64],
    d: NDArray[np.float64],
    uses: int,
    separation: int,
    momentum: float,
    decay: float,
    rates: NDArray[np.float64] | None,
    last: bool,
    starts: Sequence[tuple[int, float]],
    by_c: NDArray[np.float64],
    by_d: NDArray[np.float64],
) -> tuple[float, float]: ...
def lagged_products(
    x: NDArray[np.float64], y: NDArray[np.float64], out: NDArray[np.float64]
) -> None: ...
def buffers_gradient(
    decay: NDArray[np.float64],
    scale: NDArray[np.float64],
    by_c: NDArray[np.float64],
    mu: NDArray[np.float64],
    d: NDArray[np.float64],
    by_decay: NDArray[np.float64],
    by_scale: NDArray[np.float64],
) -> None: ...
def column_sums(
    column: NDArray[np.float64],
    lengths: NDArray[np.int64],
    starts: NDArray[np.int64],
    uses: NDArray[np.int64],
    work_limit: int,
    out: NDArray[np.float64],
) -> bool: ...
def column_products(
    column: NDArray[np.float64],
    slack: float,
    lengths: NDArray[np.int64],
    starts: NDArray[np.int64],
    uses: NDArray[np.int64],
    work_limit: int,
    out: NDArray[np.float64],
) -> bool: ...
def buffer_sums(
    decay: NDArray[np.float64],
    scale: NDArray[np.float64],
    lengths: NDArray[np.int64],
    starts: NDArray[np.int64],
    uses: NDArray[np.int64],
    out: NDArray[np.float64],
) -> None: ...
def min_separation_counts(
    trees: Sequence[tuple[int, int, bool]],
    most_uses: int,
    separation: int,
    statistic: str,
    place_bits: int,
    work_limit: int,
) -> int | None: ...
def min_separation_weights(
    trees: Sequence[tuple[int, int, bool]],
    most_uses: int,
    separation: int,
    place_bits: int,
    weight_bits: int,
    work_limit: int,
) -> float | None: ...
def order_counts(
    trees: Sequence[tuple[int, int, bool]],
    ids: NDArray[np.int64],
    offsets: NDArray[np.int64],
    statistic: str,
    out: NDArray[np.int64],
) -> None: ...
def order_weights(
    trees: Sequence[tuple[int, int, bool]],
    ids: NDArray[np.int64],
    offsets: NDArray[np.int64],
    out: NDArray[np.float64],
) -> None: ...
def order_level_bound(
    trees: Sequence[tuple[int, int, bool]],
    ids: NDArray[np.int64],
    offsets: NDArray[np.int64],
    n_ids: int,
) -> int: ...
def gaussian_delta(
    noise_multiplier: float,
    sensitivity_squared: float,
    sensitivity_squared_low: float,
    epsilon: float,
) -> tuple[float, bool]: ...
def gaussian_epsilon(
    noise_multiplier: float,
    sensitivity_squared: float,
    sensitivity_squared_low: float,
    delta: float,
) -> tuple[float, bool]: ...
def gaussian_noise_multiplier(
    epsilon: float,
    delta: float,
    sensitivity_squared: float,
    sensitivity_squared_low: float,
) -> tuple[float, bool]: ...
