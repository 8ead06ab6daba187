# SPDX-License-Identifier: Apache-2.0
"""`BoundedScaler`: columns scaled by declared bounds, the same for any rows."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_array
from sklearn.utils.validation import _check_feature_names_in, validate_data

from dpftrl_fast._validate import choice, shown
from dpftrl_fast.preprocessing._columns import Columns
from dpftrl_fast.preprocessing._declared import Categories, Column, Declared, Numeric, declared
from dpftrl_fast.tables.cells import MISSING
from dpftrl_fast.tables.values import numbers_of

FloatArray = NDArray[np.float64]

# A caller may have asked NumPy to raise floating-point errors, which would reveal values.
_quiet = np.errstate(all="ignore")
#: From so many output columns on, of which at most a quarter are not 0, the output is sparse.
_SPARSE_WIDTH = 100
_SPELLINGS = (("True", "true"), ("False", "false"), ("true", "True"), ("false", "False"))


class BoundedScaler(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # no types there
    """Scale columns to [-1, 1] by public bounds, without learning from the rows.

    A number is clipped to its bounds, the middle of the bounds becomes 0 and the bounds -1 and 1. A
    category becomes one indicator per declared category. Nothing depends on other rows, so that a
    private estimator behind it keeps its guarantee; `StandardScaler` and other transformers that
    learn from rows do not.

    Parameters
    ----------
    bounds : see below
        Public facts, never learned from private rows:

        - ``(low, high)``: bounds of all columns.
        - A sequence with an entry for each column: ``(low, high)``, or a list of categories. Two
          numbers are bounds.
        - A mapping of names to such entries, for data frames (pandas, polars, pyarrow): these
          columns are taken, in this order, and others are left out.
        - A `dpftrl_fast.tables.schema.Schema`, or the path of a schema file: its columns. Bounds
          are taken from it, not its divisors and offsets.
    missing : optional
        Values for missing cells: a mapping of a column's name (or number) to a value within its
        bounds or a declared category; with bounds for all columns, one number. By default a missing
        number is in the middle, and a missing category has no indicator.
    sparse_output : "auto" or bool, default "auto"
        Whether rows become CSR. "auto" is for wide rows with many categories.
    ignored : sequence of str, optional
        Columns of a frame that are left out on purpose. If given (it may be empty), `fit` warns of
        every other column that `bounds` does not name. `from_schema` gives the target.

    Attributes
    ----------
    x_norm_bound : float
        Largest norm of a row: the square root of the number of input columns. Before `fit` it is
        there unless `bounds` are for any number of columns.
    x_norm_bound_ : float
        The same, set by `fit`.
    n_features_in_ : int
    feature_names_in_ : array of str
        If the columns have names.

    Notes
    -----
    Row i stays row i, whatever it holds. Wrong shapes, dtypes and names are refused, values are
    not: a number beyond its bounds (or infinite) is clipped, text is read as a number where one is
    declared, and a cell that is no number, or NaN, is missing. An unknown category has no
    indicator. Categories are compared as text: 1, 1.0 and "1" are one category; True is "true".

    CSR rows stay CSR where all bounds are symmetric about 0, and are refused otherwise.

    Examples
    --------
    >>> from dpftrl_fast.preprocessing import BoundedScaler
    >>> BoundedScaler((0, 10)).fit_transform([[5, 0], [10, 99]]).tolist()
    [[0.0, -1.0], [1.0, 1.0]]
    >>> scaler = BoundedScaler([(0, 100), ["red", "blue"]])
    >>> scaler.fit_transform([[75, "blue"], [None, "green"]]).tolist()
    [[0.5, 0.0, 1.0], [0.0, 0.0, 0.0]]
    >>> round(scaler.x_norm_bound, 4)
    1.4142
    """

    def __init__(
        self,
        bounds: Any,
        *,
        missing: Any = None,
        sparse_output: Any = "auto",
        ignored: Sequence[str] | None = None,
    ) -> None:
        self.bounds = bounds
        self.missing = missing
        self.sparse_output = sparse_output
        self.ignored = ignored

    def fit(self, X: Any, y: Any = None) -> BoundedScaler:
        """Check the declared bounds and the columns; no value is looked at.

        Parameters
        ----------
        X : (n, p) array, CSR matrix or data frame
        y : ignored

        Returns
        -------
        self
        """
        given = self._declared()
        width = self._check(X, given, fitting=True)
        self.x_norm_bound_ = math.sqrt(len(given.for_width(width)))
        return self

    @_quiet
    def transform(self, X: Any) -> Any:
        """Scale rows.

        Parameters
        ----------
        X : (n, p) array, CSR matrix or data frame

        Returns
        -------
        (n, q) array or CSR array
            float32 for float32 rows, else float64.
        """
        given = self._declared()
        self._check(X, given, fitting=False)
        if scipy.sparse.issparse(X):
            return _scaled_sparse(X, given)
        columns = Columns(X, least_rows=0, estimator=self)
        places = self._places(columns, given)
        parts = given.for_width(len(places))
        single = columns.array is not None and columns.array.dtype == np.float32
        dtype = np.float32 if single else np.float64
        if all(isinstance(part, Numeric) for part in parts) and self.sparse_output is not True:
            return _scaled_numbers(columns, places, parts, dtype)
        values = np.empty((columns.rows, len(parts)), dtype=dtype)
        indices = np.empty((columns.rows, len(parts)), dtype=np.int64)
        at = 0
        for j, (place, part) in enumerate(zip(places, parts, strict=True)):
            indices[:, j] = at
            if isinstance(part, Numeric):
                values[:, j] = _scaled(columns.numbers(place), part)
            else:
                code = columns.codes(place, _codes(part))
                code[code == MISSING] = part.missing
                values[:, j] = code >= 0
                indices[:, j] += np.maximum(code, 0)
            at += part.width
        return self._assembled(values, indices, at)

    def inverse_transform(self, X: Any) -> FloatArray:
        """Return numbers in original units; not for categorical columns.

        Parameters
        ----------
        X : (n, p) array

        Returns
        -------
        (n, p) array
        """
        X = check_array(X, dtype=[np.float64, np.float32], ensure_all_finite=False)
        given = self._declared()
        _units(given.columns, "inverse_transform")
        centres, halves = _units(given.for_width(X.shape[1]), "inverse_transform")
        return np.asarray(X * halves + centres)

    def original_coefficients(self, coef: Any, intercept: Any = 0.0) -> tuple[FloatArray, Any]:
        """Return the coefficients of a linear model of scaled rows in original units.

        Parameters
        ----------
        coef : (q,) or (k, q) array_like
            Coefficients of the columns that `transform` returns.
        intercept : float or (k,) array_like

        Returns
        -------
        coef : (q,) or (k, q) array
            Divided by half the width of the bounds; those of categories are unchanged.
        intercept : float or (k,) array

        Examples
        --------
        >>> scaler = BoundedScaler([(0, 10)])
        >>> coef, intercept = scaler.original_coefficients([2.0], 1.0)
        >>> coef.tolist(), float(intercept)  # 2 (x - 5) / 5 + 1
        ([0.4], -1.0)
        """
        coef = np.asarray(coef, dtype=np.float64)
        given = self._declared()
        parts = given.for_width(coef.shape[-1] if given.every else len(given.columns))
        width = sum(part.width for part in parts)
        if coef.ndim not in (1, 2) or coef.shape[-1] != width:
            raise ValueError(f"coef must have {width} columns, got shape {coef.shape}")
        centres, halves = np.zeros(width), np.ones(width)
        at = 0
        for part in parts:
            if isinstance(part, Numeric):
                centres[at], halves[at] = part.centre, part.half_width
            at += part.width
        original = coef / halves
        return original, np.asarray(intercept, dtype=np.float64) - original @ centres

    @property
    def x_norm_bound(self) -> float:
        """Largest norm of a row that `transform` returns."""
        given = self._declared()
        if not given.every:
            return math.sqrt(len(given.columns))
        if not hasattr(self, "n_features_in_"):
            raise ValueError(
                "x_norm_bound must be read after fit where bounds are for any number of columns; "
                "it is the square root of their number"
            )
        return math.sqrt(self.n_features_in_)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the names of the output columns: "age", and "town=A" for a category.

        Parameters
        ----------
        input_features : sequence of str, optional
            Names of the input columns, where they have none.

        Returns
        -------
        array of str
        """
        given = self._declared()
        names = _check_feature_names_in(self, input_features)
        found: list[str] = []
        for name, part in zip(names, given.for_width(len(names)), strict=True):
            if isinstance(part, Categories):
                found += [f"{name}={category}" for category in part.names]
            else:
                found.append(str(name))
        return np.array(found, dtype=object)

    # ---- Checks ----

    def _declared(self) -> Declared:
        if not isinstance(self.sparse_output, (bool, np.bool_)):
            choice("sparse_output", self.sparse_output, ("auto", True, False))
        _check_ignored(self.ignored)
        return declared(self.bounds, self.missing)

    def _takes_sparse(self) -> bool:
        try:
            return all(_keeps_zero(part) for part in self._declared().columns)
        except (TypeError, ValueError, OSError):  # said by `fit`
            return False

    def _check(self, X: Any, given: Declared, *, fitting: bool) -> int:
        """Check shape, dtypes and names of columns; return the number of those that are taken."""
        if scipy.sparse.issparse(X):
            _refuse_sparse(X, given)
            width = int(X.shape[1])
        else:
            columns = Columns(X, least_rows=1 if fitting else 0, estimator=self)
            width = len(self._places(columns, given))
            if given.names is not None:
                if fitting:
                    self._announce_unused(columns.names or (), given.names)
                    self.n_features_in_ = width
                    self.feature_names_in_ = np.array(given.names, dtype=object)
                return width
        if fitting or hasattr(self, "n_features_in_"):
            X = X if hasattr(X, "shape") else np.empty((1, width))
            validate_data(self, X, reset=fitting, skip_check_array=True)
        return width

    def _announce_unused(self, names: Sequence[str], used: Sequence[str]) -> None:
        """Warn of the columns that are neither declared nor ignored; names are public."""
        if self.ignored is None:
            return
        known = {*used, *self.ignored}
        unused = [name for name in names if name not in known]
        if unused:
            warnings.warn(
                f"X has columns that are not declared, and they are not used: {shown(unused)}; "
                "declare public bounds or categories of them, or drop them from X, or list them as "
                '"ignore" (from_schema with a dict of columns) or in `ignored`',
                UserWarning,
                stacklevel=4,
            )

    @staticmethod
    def _places(columns: Columns, given: Declared) -> list[int]:
        if given.names is not None and columns.names is not None:
            return columns.select(given.names)
        given.for_width(columns.width)
        return [*range(columns.width)]

    def _assembled(self, values: NDArray[Any], indices: NDArray[np.int64], width: int) -> Any:
        rows, entries = values.shape
        sparse = self.sparse_output
        if sparse == "auto":
            sparse = width >= _SPARSE_WIDTH and 4 * entries <= width
        if not sparse:
            dense = np.zeros((rows, width), dtype=values.dtype)
            # An entry of value 0 stands at its first indicator, which no other entry has.
            np.put_along_axis(dense, indices, values, axis=1)
            return dense
        starts = np.arange(0, rows * entries + 1, entries)
        return scipy.sparse.csr_array((values.ravel(), indices.ravel(), starts), (rows, width))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.sparse = self._takes_sparse()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True  # cells of any kind are read
        tags.input_tags.categorical = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def entries_of(bounds: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the entries of a schema for columns with their bounds or categories.

    Examples
    --------
    >>> entries_of({"age": (18, 90), "town": ["A", "B"]})
    {'age': {'bounds': [18.0, 90.0]}, 'town': {'categories': ['A', 'B']}}
    """
    given = declared(bounds)
    return {
        name: {"bounds": [column.low, column.high]}
        if isinstance(column, Numeric)
        else {"categories": [*column.names]}
        for name, column in zip(given.names or (), given.columns, strict=True)
    }


def _check_ignored(ignored: Any) -> None:
    if isinstance(ignored, str) or not isinstance(ignored, (Sequence, type(None))):
        raise TypeError(f"ignored must be a sequence of names, got {shown(ignored)}")


def _scaled(numbers: FloatArray, part: Numeric) -> FloatArray:
    scaled = (numbers - part.centre) / part.half_width
    return np.where(np.isnan(scaled), part.missing, np.clip(scaled, -1.0, 1.0))


def _scaled_numbers(
    columns: Columns, places: list[int], parts: tuple[Column, ...], dtype: Any
) -> NDArray[Any]:
    """Return rows of numeric columns only."""
    array = columns.array
    if array is None or array.dtype.kind not in "iufb":
        scaled = np.empty((columns.rows, len(parts)), dtype=dtype)
        for j, (place, part) in enumerate(zip(places, parts, strict=True)):
            assert isinstance(part, Numeric)
            scaled[:, j] = _scaled(columns.numbers(place), part)
        return scaled
    missing = np.array([part.missing for part in parts])
    centres, halves = _units(parts, "transform")
    scaled = numbers_of(array)
    scaled -= centres
    scaled /= halves
    np.clip(scaled, -1.0, 1.0, out=scaled)
    np.copyto(scaled, missing, where=np.isnan(scaled))
    return scaled.astype(dtype, copy=False)


def _units(parts: tuple[Column, ...], name: str) -> tuple[FloatArray, FloatArray]:
    """Return centres and half widths of numeric columns."""
    if not all(isinstance(part, Numeric) for part in parts):
        raise ValueError(f"{name} needs numeric columns, got declared categories")
    numeric = [part for part in parts if isinstance(part, Numeric)]
    return (
        np.array([part.centre for part in numeric]),
        np.array([part.half_width for part in numeric]),
    )


def _codes(part: Categories) -> dict[str, int]:
    """Return the code of each category; a bool is spelled True by some and true by others."""
    codes = {name: code for code, name in enumerate(part.names)}
    for name, other in _SPELLINGS:
        if name in part.names and other not in part.names:
            codes[other] = codes[name]
    return codes


def _keeps_zero(part: Column) -> bool:
    return isinstance(part, Numeric) and part.low == -part.high


def _refuse_sparse(X: Any, given: Declared) -> None:
    if X.dtype.kind not in "iufb":
        kind = "Complex data not supported: " if X.dtype.kind == "c" else ""
        raise ValueError(f"{kind}sparse X must hold numbers, got dtype {X.dtype}")
    for part in given.for_width(int(X.shape[1])):
        if not _keeps_zero(part):
            raise ValueError(
                "sparse X needs bounds (-b, b) for every column, so that 0 stays 0, got others: "
                "declare such bounds, or pass dense rows"
            )


def _scaled_sparse(X: Any, given: Declared) -> Any:
    rows = X.tocsr().copy()
    rows.sum_duplicates()  # two entries of one cell would pass its bound together
    rows.data = rows.data.astype(np.float32 if X.dtype == np.float32 else np.float64)
    parts = given.for_width(int(X.shape[1]))
    columns = rows.indices
    high, missing = (np.array([getattr(p, name) for p in parts]) for name in ("high", "missing"))
    scaled = np.clip(rows.data.astype(np.float64) / high[columns], -1.0, 1.0)
    rows.data = np.where(np.isnan(scaled), missing[columns], scaled).astype(rows.data.dtype)
    return rows
