# SPDX-License-Identifier: Apache-2.0
"""Warning of the privacy cost of a scikit-learn search, before its first fit.

Searches know nothing of privacy. They first clone the estimator, in the calling process, so a clone
inspects its callers. A search warns once and refuses a `noise_seed`, since its scores would select
a model by known noise.
"""

from __future__ import annotations

import sys
import warnings
from types import FrameType
from typing import Any

from sklearn.model_selection import ParameterGrid
from sklearn.model_selection._search import BaseSearchCV


def announce_search(estimator: Any) -> None:
    """Warn of the number of runs of a search at its first clone of this estimator.

    Examples
    --------
    >>> from dpftrl_fast.linear_model import DPFTRLRegressor
    >>> announce_search(DPFTRLRegressor())  # no search, no warning
    """
    frame = _search_frame()
    if frame is None or "base_estimator" in frame.f_locals:  # no search, or not its first clone
        return
    search = frame.f_locals["self"]
    grid = getattr(search, "param_grid", getattr(search, "param_distributions", {}))
    names = {name for part in ([grid] if isinstance(grid, dict) else grid) for name in part}
    if estimator.noise_seed is not None or any(n.split("__")[-1] == "noise_seed" for n in names):
        raise ValueError(
            "noise_seed must be None in a search, got one: the scores would select a model by "
            "known noise"
        )
    folds = frame.f_locals.get("n_splits", getattr(search, "n_splits_", None))
    warnings.warn(_words(search, folds), UserWarning, stacklevel=2)


def _search_frame() -> FrameType | None:
    """Return the frame of a running search's `fit`, or None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "fit" and isinstance(frame.f_locals.get("self"), BaseSearchCV):
            return frame
        frame = frame.f_back
    return None


def _words(search: Any, folds: int | None) -> str:
    candidates: int | None = getattr(search, "n_iter", None)
    if isinstance(getattr(search, "param_grid", None), (dict, list)):
        candidates = len(ParameterGrid(search.param_grid))
    runs, times = "many runs", "the sum over all of them"
    if candidates is not None and folds is not None:
        count = candidates * folds + bool(search.refit)
        refit = ", and the refit" if search.refit else ""
        runs = f"{count} runs ({candidates} candidates, {folds} folds{refit})"
        times = f"up to {count} times that of one run"
    return (
        f"this search makes {runs} on the same rows: their mu^2 add up, to {times} "
        "(dpftrl_fast.accounting.compose), while epsilon_ is that of a single run. Its scores are "
        "computed from rows without noise: they, and the selection by them, are not private"
    )
