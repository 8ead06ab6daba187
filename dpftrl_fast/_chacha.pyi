# SPDX-License-Identifier: Apache-2.0
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.random import BitGenerator
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray
from typing_extensions import Self, disjoint_base

__all__ = ["ChaCha"]

_Integer: TypeAlias = int | np.integer[Any]

@disjoint_base
class ChaCha(BitGenerator):
    def __init__(
        self,
        seed: _Integer | bytes | ISeedSequence | None = None,
        *,
        rounds: int = 12,
    ) -> None: ...
    @property
    def rounds(self) -> int: ...
    @property
    def state(self) -> dict[str, Any]: ...
    @state.setter
    def state(self, value: Mapping[str, Any]) -> None: ...
    def advance(self, delta: _Integer) -> Self: ...
    def jumped(self, jumps: _Integer = 1) -> Self: ...
    def spawn(self, n_children: _Integer) -> list[Self]: ...

def _keystream(
    key: bytes, counter: Sequence[int], rounds: int, n_blocks: int
) -> NDArray[np.uint32]: ...
