# SPDX-License-Identifier: Apache-2.0
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
def normal_pair_f64(radius: int, angle: int) -> tuple[float, float]: ...

class _Tree:
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
    def step(self, out: NDArray[Any] | None) -> NDArray[Any]: ...
    def residual(self, out: NDArray[Any] | None) -> NDArray[Any]: ...
    def prefix(self, t: int, out: NDArray[Any] | None) -> NDArray[Any]: ...
    def node(self, level: int, index: int, out: NDArray[Any] | None) -> NDArray[Any]: ...
    def advance_to(self, t: int) -> None: ...
    def restart(self, complete: bool) -> None: ...
    @property
    def t(self) -> int: ...
    @property
    def tree(self) -> int: ...
    @property
    def allocated_vectors(self) -> int: ...
    def position(self) -> tuple[int, list[int], int, int]: ...
    def kept_vectors(self) -> list[tuple[str, int, int, NDArray[Any]]]: ...
    def set_position(
        self,
        t: int,
        ends: list[int],
        last_tree: int,
        last_t: int,
        vectors: list[tuple[str, int, int, NDArray[Any]]],
    ) -> None: ...

class TreeFloat32(_Tree): ...
class TreeFloat64(_Tree): ...
