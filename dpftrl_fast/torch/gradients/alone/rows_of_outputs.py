# SPDX-License-Identifier: Apache-2.0
"""Dimensions of the rows in a model's outputs, if its examples pass one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn

from dpftrl_fast.torch.gradients.alone.example_trees import Rows, taken_apart
from dpftrl_fast.torch.gradients.recheck import made_up_trees
from dpftrl_fast.torch.gradients.trials import unchanged


def rows_of_outputs(
    network: nn.Module, given: Rows, shapes: Sequence[torch.Size]
) -> list[int | None]:
    """Return the dimension of the rows in each output for a batch, None where there is none.

    The shapes of the outputs for one example are compared with those for a batch of two made-up
    ones: a scalar is a loss of the whole batch, or one number for each example from which the model
    has taken all dimensions of size 1 (``squeeze``). Random numbers and buffers are as they were
    afterwards.

    Examples
    --------
    >>> given = Rows((torch.ones(3, 2),), {}, 3)
    >>> rows_of_outputs(nn.Linear(2, 5), given, [torch.Size([1, 5])])
    [0]
    """
    doubled: list[torch.Size] = []
    for made in made_up_trees(given.split(slice(0, 1)), 0):
        args, kwargs = given.rebuilt([x[[0, 0]] for x in made])
        with suppress(Exception), torch.no_grad(), unchanged(network):
            doubled = [x.shape for x in taken_apart(network(*args, **kwargs))[0]]
            break
    # It may run one example at a time only.
    if len(doubled) != len(shapes):
        doubled = [torch.Size([2, *shape[1:]]) if shape else shape for shape in shapes]
    return [_dimension(one, two) for one, two in zip(shapes, doubled, strict=True)]


def joined(parts: Tensor, rows: int | None, *, mean: bool) -> Tensor:
    """Return an output for a batch, from those for each example alone.

    Parameters
    ----------
    parts : Tensor, shape (examples, ...)
        Where ... is the shape for a batch of one.
    rows : int or None
        Dimension of the rows, as `rows_of_outputs` says; -1 - d if a batch of one lacks dimension
        d. None: the mean over the examples is returned, or their sum.
    mean : bool
        Whether it is the mean. NaN counts as 0 unless all are NaN.

    Examples
    --------
    >>> joined(torch.tensor([1.0, float("nan")]), None, mean=True)
    tensor(0.5000)
    """
    if rows is None:
        if not parts.is_floating_point():
            return parts.sum(0) if parts.dtype != torch.bool else parts.any(0)
        missing = parts.isnan()
        whole = torch.where(missing & ~missing.all(0), 0.0, parts).sum(0)
        return whole / len(parts) if mean else whole
    if rows < 0:
        return parts.movedim(0, -1 - rows)
    return parts.squeeze(rows + 1).movedim(0, rows)


def _dimension(one: torch.Size, two: torch.Size) -> int | None:
    if one == two:
        return None
    if len(one) == len(two):
        others = [d for d in range(len(one)) if one[d] != two[d]]
        if len(others) == 1 and one[others[0]] == 1:
            return others[0]
    for d in range(len(two)):
        if two[d] == 2 and one == two[:d] + two[d + 1 :]:
            return -1 - d
    raise ValueError(
        "the model's outputs must have the examples along one dimension, got an output of shape "
        f"{tuple(one)} for one example and of shape {tuple(two)} for two"
    )
