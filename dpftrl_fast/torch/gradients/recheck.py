# SPDX-License-Identifier: Apache-2.0
"""Made-up inputs for trials of a model, and when trials come later in a run.

A refusal between two releases may not depend on private values. So later trials have inputs that
are made up: the shapes and dtypes of the batch's arguments, with values of a fixed generator. What
they find follows from public facts and the model alone. The schedule is public too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

_EVERY = 512


def recheck_due(steps_taken: int) -> bool:
    """Return whether the first pass after so many steps is tried: at powers of two, then often.

    Examples
    --------
    >>> [t for t in range(2000) if recheck_due(t)]
    [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1536]
    """
    power = steps_taken > 0 and steps_taken & (steps_taken - 1) == 0
    return power or (steps_taken > 0 and steps_taken % _EVERY == 0)


def made_up(x: Any, generator: torch.Generator, low: int = 0) -> Any:
    """Return a tensor like `x` with values that do not depend on it; anything else unchanged.

    Floats are in [0, 1), integers are `low` or ``low + 1``, so that most indices exist.

    Examples
    --------
    >>> made_up(torch.full((2, 3), 7), torch.Generator().manual_seed(0)).unique().tolist()
    [0, 1]
    """
    if not isinstance(x, torch.Tensor):
        return x
    if x.dtype.is_floating_point or x.dtype.is_complex:
        made = torch.rand(x.shape, generator=generator)
    elif x.dtype == torch.bool:
        made = torch.randint(0, 2, x.shape, generator=generator)
    else:
        made = torch.randint(low, low + 2, x.shape, generator=generator)
    return made.to(dtype=x.dtype, device=x.device).requires_grad_(x.requires_grad)


def made_up_trees(tree: Any, seed: int) -> Iterator[Any]:
    """Yield trees with made-up tensors, to try one after the other: some may be no index.

    Examples
    --------
    >>> [made[0].unique().tolist() for made in made_up_trees([torch.full((99,), 7)], 0)]
    [[0, 1], [1, 2]]
    """
    tensors = [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]
    # An index that does not exist ends the process on other devices.
    for low in (0, 1) if all(x.device.type == "cpu" for x in tensors) else (0,):
        generator = torch.Generator().manual_seed(seed)
        yield tree_map(partial(made_up, generator=generator, low=low), tree)
