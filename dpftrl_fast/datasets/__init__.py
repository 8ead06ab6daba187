# SPDX-License-Identifier: Apache-2.0
"""Public data sets: ``python -m dpftrl_fast.datasets flights``.

Nothing is downloaded. Files come from installed packages, or from a folder that the caller names.
"""

from dpftrl_fast.datasets.command import main
from dpftrl_fast.datasets.fashion_mnist import FashionMNIST, fashion_mnist
from dpftrl_fast.datasets.flights import (
    FLIGHTS_HELD_OUT,
    flights,
    flights_order,
    flights_schema,
)
from dpftrl_fast.datasets.insteval import InstEval, insteval
from dpftrl_fast.datasets.order import hashed_order

__all__ = [
    "FLIGHTS_HELD_OUT",
    "FashionMNIST",
    "InstEval",
    "fashion_mnist",
    "flights",
    "flights_order",
    "flights_schema",
    "hashed_order",
    "insteval",
    "main",
]
