# SPDX-License-Identifier: Apache-2.0
"""Comparison of a few examples over processes: all must be given the same, whole data set."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpftrl_fast.torch.plain_states import random_state, restore_random_state

_PLACES = 8


def examples_hash(dataset: Any, salt: str) -> str | None:
    """Return a hash of some examples, or None where they cannot be told apart by their content.

    Examples are read under one state of the global random numbers, so that augmentations are the
    same on all processes; those that differ all the same when they are read again tell nothing. The
    hash is of `salt` too, so that it reveals no example to those who do not know the salt.

    Examples
    --------
    >>> examples_hash([torch.ones(2), torch.zeros(2)], "s") == examples_hash([[1.0]] * 2, "s")
    False
    >>> examples_hash([object()], "s") is None
    True
    """
    before = random_state()
    try:
        found = {_hash(dataset, salt) for _ in range(2)}
    except Exception:  # of the data set: reading it for training will show it
        return None
    finally:
        restore_random_state(before)
    return found.pop() if len(found) == 1 else None


def check_same_examples(own: str | None, first: str | None) -> None:
    """Refuse a data set whose examples have another hash than those of rank 0."""
    if own is not None and first is not None and own != first:
        raise ValueError(
            "the data set must be the whole one on every process, the same on all, got examples "
            "here that differ from those of rank 0: give make_private the data set before it is "
            "cut or shuffled, since it gives each process its part of every batch itself"
        )


def _hash(dataset: Any, salt: str) -> str | None:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - the global one is meant
    random.seed(0)
    length = len(dataset)
    digest = hashlib.sha256(salt.encode())
    for place in sorted({length * i // _PLACES for i in range(_PLACES)}):
        for part in _parts(dataset[place]):
            if part is None:
                return None
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _parts(value: Any) -> Iterator[bytes | None]:
    """Yield the content of an example; None for an object whose content is not known."""
    if isinstance(value, Tensor):
        yield str((value.dtype, tuple(value.shape))).encode()
        yield value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, Mapping):
        for name in value:
            yield from _parts((name, value[name]))
    elif isinstance(value, (list, tuple)):
        yield str(len(value)).encode()
        for item in value:
            yield from _parts(item)
    elif isinstance(value, (str, int, float, bool, bytes, type(None))):
        yield repr(value).encode()
    elif callable(getattr(value, "tobytes", None)):  # arrays, images
        yield value.tobytes()
    else:
        yield None
