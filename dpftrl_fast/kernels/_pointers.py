# SPDX-License-Identifier: Apache-2.0
"""Arrays by address in compiled loops: a call for each of a thousand arrays costs as much as work.

Whoever passes addresses keeps the arrays alive during the call.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic


def _pointer_type(typing_context: Any, address: Any, like: Any) -> Any:
    """Type the address of numbers of the dtype of `like`."""
    kind = types.CPointer(like.dtype)  # type: ignore[no-untyped-call]

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], context.get_value_type(kind))

    return kind(address, like), generate


pointer: Any = intrinsic(_pointer_type)
"""``pointer(address, like)``: an int64 as what ``numba.carray`` takes."""
