# SPDX-License-Identifier: Apache-2.0
"""Warning of transformers in front of a private estimator that learn from the private rows.

An estimator knows nothing of the pipeline that it is in, so its `fit` inspects its callers, as for
a search. Transformers that scikit-learn fits without noise reveal rows: means, components, counts.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.feature_selection import RFE, RFECV, SelectFromModel
from sklearn.pipeline import FeatureUnion, Pipeline


def _declares_categories(encoder: Any) -> bool:
    counts = (getattr(encoder, name, None) for name in ("min_frequency", "max_categories"))
    return not isinstance(encoder.categories, str) and all(count is None for count in counts)


# Transformers of scikit-learn that have to be fitted and, with these parameters, learn public facts
# only, such as the number of columns.
_LEARNS_NOTHING: dict[str, Callable[[Any], bool]] = {
    "FrozenEstimator": lambda t: True,  # fitted before, elsewhere
    "GaussianRandomProjection": lambda t: True,
    "MultiLabelBinarizer": lambda t: t.classes is not None,
    "OneHotEncoder": _declares_categories,
    "OrdinalEncoder": _declares_categories,
    "PolynomialCountSketch": lambda t: True,
    "PolynomialFeatures": lambda t: True,
    "RBFSampler": lambda t: not isinstance(t.gamma, str),
    "SimpleImputer": lambda t: (  # without keep_empty_features it drops columns by their values
        t.strategy == "constant" and t.keep_empty_features and not t.add_indicator
    ),
    "SkewedChi2Sampler": lambda t: True,
    "SparseRandomProjection": lambda t: True,
}


def announce_transformers(private: type) -> None:
    """Warn, once, of the parts of the callers' pipelines that learn from rows.

    `private` is the base of the private estimators: a selection of features by the coefficients of
    one learns nothing else.

    Examples
    --------
    >>> from dpftrl_fast.linear_model import DPFTRLRegressor
    >>> announce_transformers(DPFTRLRegressor)  # no pipeline, no warning
    """
    found: list[str] = []
    for caller in _callers():
        if isinstance(caller, Pipeline):
            for name, step in caller.steps[:-1]:
                found += _learners(name, step, private)
        else:
            found += _learners("transformer", caller.transformer, private)
    if found:
        warnings.warn(
            f"{', '.join(found)} in front of this estimator learns from private rows without "
            "noise (or does not say by the tag requires_fit that it learns nothing), which "
            "epsilon_ does not cover. Use dpftrl_fast.preprocessing.BoundedScaler with public "
            "bounds, or fit it on public rows and wrap it in sklearn.frozen.FrozenEstimator",
            UserWarning,
            stacklevel=2,
        )


def _callers() -> Iterator[Any]:
    """Yield the pipelines (and regressors of transformed targets) whose `fit` is running."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self") if frame.f_code.co_name == "fit" else None
        if isinstance(caller, (Pipeline, TransformedTargetRegressor)):
            yield caller
        frame = frame.f_back


def _learners(name: str, part: Any, private: type) -> list[str]:
    """Return the names of the parts that learn."""
    if part is None or isinstance(part, str):  # "passthrough" or "drop"
        return []
    inside = _parts(part)
    if inside is not None:
        return [f for own, one in inside for f in _learners(f"{name}__{own}", one, private)]
    chosen = isinstance(part, (RFE, SelectFromModel)) and not isinstance(part, RFECV)
    if chosen and isinstance(part.estimator, private):
        return []
    own = type(part)
    if own.__module__.startswith("sklearn.") and own.__name__ in _LEARNS_NOTHING:
        learns = not _LEARNS_NOTHING[own.__name__](part)
    else:
        tags = getattr(part, "__sklearn_tags__", None)
        learns = tags is None or bool(tags().requires_fit)
    return [f"{name!r} ({own.__name__})"] if learns else []


def _parts(part: Any) -> list[tuple[str, Any]] | None:
    """Return the parts of a transformer that consists of others."""
    if isinstance(part, Pipeline):
        return [(name, step) for name, step in part.steps]
    if isinstance(part, FeatureUnion):
        return [(name, step) for name, step in part.transformer_list]
    if isinstance(part, ColumnTransformer):
        columns = [(name, step) for name, step, _ in part.transformers]
        return [*columns, ("remainder", part.remainder)]
    return None
