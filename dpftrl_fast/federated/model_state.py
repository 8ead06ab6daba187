# SPDX-License-Identifier: Apache-2.0
"""Arrays of a model that are state and not parameters, refused by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable

_STATE = frozenset(
    {
        "running_mean",  # torch
        "running_var",
        "num_batches_tracked",
        "moving_mean",  # Keras
        "moving_variance",
    }
)
_COLLECTION = "batch_stats"  # Flax
_SHOWN = 3


def refuse_model_state(names: Iterable[str]) -> None:
    """Refuse running statistics of normalisation layers among the arrays of a model.

    Under a plan every array gets noise. A mean or a variance with noise is no longer one of any
    data: a variance turns negative, and each output of its layer is then NaN, without an error.

    Parameters
    ----------
    names : iterable of str
        Of the arrays, with dots or slashes between the components. A state is known by its last
        component as torch and Keras name it, or by a component "batch_stats", as in Flax.

    Raises
    ------
    ValueError
        If there is one. The message names the first ones and the remedies.

    Examples
    --------
    >>> refuse_model_state(["0.weight", "running_mean_head.bias"])
    >>> refuse_model_state(["norm.weight", "norm.running_var"])
    Traceback (most recent call last):
    ...
    ValueError: parameters must be trained arrays, got running statistics: norm.running_var. Noise \
would turn variances negative, and the model's outputs into NaN. Leave these arrays out of the \
model and of the updates, so that each client keeps its own, or use GroupNorm or LayerNorm in \
place of BatchNorm
    """
    found = [name for name in names if _is_state(name)]
    if not found:
        return
    more = len(found) - _SHOWN
    shown = ", ".join(found[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
    raise ValueError(
        f"parameters must be trained arrays, got running statistics: {shown}. Noise would turn "
        "variances negative, and the model's outputs into NaN. Leave these arrays out of the model "
        "and of the updates, so that each client keeps its own, or use GroupNorm or LayerNorm in "
        "place of BatchNorm"
    )


def _is_state(name: str) -> bool:
    parts = re.split(r"[./]", re.sub(r":\d+$", "", name))
    return parts[-1] in _STATE or _COLLECTION in parts
