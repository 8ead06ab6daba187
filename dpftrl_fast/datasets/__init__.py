# SPDX-License-Identifier: Apache-2.0
r"""Public data sets: ``python -m dpftrl_fast.datasets flights``.

Nothing is downloaded. Files come from installed packages, or from a folder of the caller.

Examples
--------
>>> import gzip, pathlib, tempfile
>>> from dpftrl_fast import datasets
>>> file = pathlib.Path(tempfile.mkdtemp(), "mnist_5k.csv.gz")
>>> text = "\n".join(",".join(["0"] * 784 + [str(digit)]) for digit in (3, 1))
>>> size = file.write_bytes(gzip.compress(text.encode()))
>>> images, labels = datasets.mnist_digits(file)
>>> images.shape, labels.tolist()
((2, 784), [3, 1])
"""

from dpftrl_fast.datasets.cifar10 import CIFAR10, cifar10
from dpftrl_fast.datasets.emnist import EMNIST, EMNIST_CLASSES, emnist
from dpftrl_fast.datasets.fashion_mnist import FashionMNIST, fashion_mnist
from dpftrl_fast.datasets.flights import (
    FLIGHTS_HELD_OUT,
    flights,
    flights_order,
    flights_schema,
    hashed_order,
    main,
)
from dpftrl_fast.datasets.insteval import InstEval, insteval
from dpftrl_fast.datasets.mnist_digits import MNISTDigits, mnist_digits
from dpftrl_fast.datasets.online_retail import OnlineRetail, online_retail
from dpftrl_fast.datasets.shakespeare import Shakespeare, shakespeare

__all__ = [
    "CIFAR10",
    "EMNIST",
    "EMNIST_CLASSES",
    "FLIGHTS_HELD_OUT",
    "FashionMNIST",
    "InstEval",
    "MNISTDigits",
    "OnlineRetail",
    "Shakespeare",
    "cifar10",
    "emnist",
    "fashion_mnist",
    "flights",
    "flights_order",
    "flights_schema",
    "hashed_order",
    "insteval",
    "main",
    "mnist_digits",
    "online_retail",
    "shakespeare",
]
