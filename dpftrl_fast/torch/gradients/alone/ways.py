# SPDX-License-Identifier: Apache-2.0
"""The two ways of a pass of single examples: by ``torch.func.vmap``, or one after the other."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.func import vmap

from dpftrl_fast.torch.gradients.alone.example_passes import Chunk

Example = Callable[[tuple[Tensor, ...], tuple[Tensor, ...]], tuple[Tensor, ...]]


def by_vmap(example: Example, chunk: Chunk, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the outputs of a chunk of examples, all at once."""
    found: tuple[Tensor, ...] = vmap(example, randomness="different")(chunk.copies, rows)
    return found


def one_by_one(example: Example, chunk: Chunk, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the outputs of a chunk of examples, one after the other."""
    copies = [x.unbind() if len(x) > 1 else (x.squeeze(0),) for x in chunk.copies]
    places = range(chunk.part.stop - chunk.part.start)
    found = [example(tuple(x[i] for x in copies), tuple(x[i] for x in rows)) for i in places]
    return tuple(map(torch.stack, zip(*found, strict=True)))


@contextmanager
def vmap_alone() -> Iterator[None]:
    """Keep torch's notes on slow operations to itself, and refuse recomputation of activations.

    That would come in the backward pass, outside of ``vmap``.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
        with disable_saved_tensors_hooks("activation checkpointing runs a part of it again"):
            yield
