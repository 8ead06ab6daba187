# SPDX-License-Identifier: Apache-2.0
"""Data files of packages, folders and archives, of bounded size: packages are not imported."""

from __future__ import annotations

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

_BLOCK = 1 << 26


def data_file(
    source: str | Path | None, package: str, version: str, ending: str, largest: int
) -> tuple[str, bytes]:
    """Return name and content of a data file: of a wheel, the file itself or the installed package.

    `source` is the wheel or the file, None for the installed package, and `largest` the most bytes
    that a file in a wheel may have. ValueError if the wheel is damaged; otherwise as
    `installed_file`.
    """
    path = installed_file(package, version, ending) if source is None else Path(source)
    if path.suffix != ".whl":
        return str(path), path.read_bytes()
    return str(path), file_in_zip(path, ending, largest, "wheel")


def installed_file(package: str, version: str, ending: str) -> Path:
    """Return the path, with this ending, of a file of an installed distribution.

    Raises
    ------
    FileNotFoundError
        If the package is not installed in this version, or has no such file.
    """
    hint = f"pip install {package}=={version}"
    try:
        distribution = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        raise FileNotFoundError(f"expected the package {package}, not found: {hint}") from None
    if distribution.version != version:
        raise FileNotFoundError(f"expected {package} {version}, got {distribution.version}: {hint}")
    parts = tuple(ending.split("/"))
    for file in distribution.files or ():
        if file.parts[-len(parts) :] == parts:
            return Path(str(file.locate()))
    raise FileNotFoundError(f"expected {ending} in {package}, not found: {hint}")


def file_in(folder: Path | None, *patterns: str) -> Path | None:
    """Return the first file of a folder that matches one of some patterns, in their order."""
    found = (path for p in patterns if folder is not None for path in sorted(folder.glob(p)))
    return next(found, None)


def file_content(path: Path, largest: int) -> bytes:
    """Return the content of a file; FileNotFoundError or ValueError if missing or too large."""
    if not path.exists():
        raise FileNotFoundError(f"expected {str(path)!r}, not found")
    if path.stat().st_size > largest:
        raise ValueError(f"expected at most {largest} bytes in {str(path)!r}, got more")
    return path.read_bytes()


def file_in_zip(path: Path, ending: str, largest: int, kind: str = "zip archive") -> bytes:
    """Return the content of the first file of a zip archive whose path has this ending."""
    parts = tuple(ending.split("/"))
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if PurePosixPath(info.filename).parts[-len(parts) :] == parts:
                    if info.file_size > largest:
                        raise ValueError(
                            f"expected at most {largest} bytes in {ending!r}, got more"
                        )
                    return archive.read(info)
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise ValueError(f"expected a whole {kind}, {str(path)!r}: {error}") from None
    raise FileNotFoundError(f"expected {ending} in {str(path)!r}, not found")


def files_in_tar(
    path: Path, wanted: Callable[[PurePosixPath], bool], largest: int
) -> dict[str, bytes]:
    """Return the wanted files of a tar.gz archive by name; its checksum is verified."""
    found: dict[str, bytes] = {}
    try:
        with gzip.open(path) as unpacked, tarfile.open(fileobj=unpacked, mode="r:") as archive:
            for member in archive:
                name = PurePosixPath(member.name)
                if not (member.isfile() and wanted(name)):
                    continue
                if member.size > largest:
                    raise ValueError(f"expected at most {largest} bytes in {name.name!r}, got more")
                content = archive.extractfile(member)
                assert content is not None
                found[name.name] = content.read()
            while unpacked.read(_BLOCK):  # to the end, where the checksum is
                pass
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"expected a whole tar.gz archive, {str(path)!r}: {error}") from None
    return found


def decompressed(unpacker: Any, content: bytes, name: str, largest: int, kind: str) -> bytes:
    """Return the whole output of a decompressor of zlib or lzma; ValueError if it is not so."""
    try:
        output: bytes = unpacker.decompress(content, largest)
    except Exception as error:
        raise ValueError(f"expected {kind}, {name!r}: {error}") from None
    if not unpacker.eof:
        raise ValueError(f"expected {kind}, whole and of at most {largest} bytes, {name!r}")
    return output
