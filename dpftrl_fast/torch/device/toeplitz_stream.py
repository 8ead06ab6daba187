# SPDX-License-Identifier: Apache-2.0
"""Steps of a Toeplitz mechanism on one device, by calls of the kernel of `triton_toeplitz`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dpftrl_fast.torch.device.stream import KeyStream
from dpftrl_fast.torch.device.triton_toeplitz import toeplitz_kernel


class ToeplitzStream(KeyStream):
    """Noise of one key on one device, combined over steps.

    Parameters
    ----------
    key, **options
        As for `KeyStream`.
    std : float
        Of z, in the dtype.
    kind : {"taps", "buffers", "bands"}
    first, second : sequence of float
        Taps, decays and scales, or bands, in the dtype.
    """

    def __init__(
        self,
        key: bytes,
        *,
        std: float,
        kind: str,
        first: Sequence[float],
        second: Sequence[float],
        **options: Any,
    ) -> None:
        super().__init__(key, **options)
        # A difference is the sum with the negative factor, to the bit.
        after = {
            "taps": [1.0, *first[1:]],
            "bands": [first[0], *(-c for c in first[1:])],
            "buffers": [1.0, *(-scale for scale in second), *first],
        }
        self._numbers = torch.tensor([std, *after[kind]], dtype=self.dtype, device=self.device)
        self._kind = kind
        self._divides = kind == "bands" and first[0] != 1.0
        self._no_table = self._table([])

    def take(
        self,
        block: int,
        t: int,
        *,
        made: int,
        known: Sequence[torch.Tensor],
        keep: torch.Tensor | None,
        written: Sequence[torch.Tensor],
        out: torch.Tensor | None,
        total: torch.Tensor | None,
        add_out: bool,
        add_total: bool,
        show_total: bool,
    ) -> None:
        """Make x of step t of a block in one launch.

        Parameters
        ----------
        block, t : int
        made : int
            Normals to make: 1, or all taps.
        known : sequence of tensors
            Vectors to read, the newest first, or the buffers.
        keep : tensor, optional
            Where z (of taps) or x goes.
        written : sequence of tensors
            Buffers to update in place.
        out : tensor, optional
            Becomes x, or out + x (`add_out`), or the new total (`show_total`).
        total : tensor, optional
            Becomes x, or total + x (`add_total`).
        """
        vectors = written or known
        addresses = [vector.data_ptr() for vector in vectors]
        self._launch(
            toeplitz_kernel,
            out,
            total,
            keep,
            self._table(addresses) if addresses else self._no_table,
            self._numbers,
            made,
            t - 1,
            len(known),
            len(written),
            tree=block,
            KEEP_Z=keep is not None and self._kind == "taps",
            DIVIDE=self._divides,
            BUFFERS=bool(written),
            ADD_OUT=add_out,
            ADD_SUM=add_total,
            SHOW_SUM=show_total,
        )
