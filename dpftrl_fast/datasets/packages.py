# SPDX-License-Identifier: Apache-2.0
"""Data files of packages, installed or packed in wheels: the packages are not imported."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path


def data_file(
    source: str | Path | None, package: str, version: str, ending: str, largest: int
) -> tuple[str, bytes]:
    """Return name and content of a package's data file.

    Parameters
    ----------
    source : str, Path or None
        The package's wheel, or the file itself; None for that of the installed package.
    package, version, ending
        As for `installed_file`.
    largest : int
        Bytes that a file in a wheel may have.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the wheel is none, or damaged.
    """
    path = installed_file(package, version, ending) if source is None else Path(source)
    if path.suffix != ".whl":
        return str(path), path.read_bytes()
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if info.filename.endswith(ending) and info.file_size <= largest:
                    return str(path), archive.read(info)
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise ValueError(f"expected a whole wheel, {str(path)!r}: {error}") from None
    raise FileNotFoundError(f"expected {ending} in {str(path)!r}, not found")


def file_in(folder: Path | None, *patterns: str) -> Path | None:
    """Return the first file of a folder that matches the first possible of some patterns."""
    found = (path for p in patterns if folder is not None for path in sorted(folder.glob(p)))
    return next(found, None)


def installed_file(package: str, version: str, ending: str) -> Path:
    """Return the path of a file of an installed distribution.

    Parameters
    ----------
    package, version : str
        The distribution, of this very version.
    ending : str
        How the path of the file ends, with "/" between its parts.

    Raises
    ------
    FileNotFoundError
        If the package is not installed in this version, or holds no such file.
    """
    from importlib import metadata

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
    raise FileNotFoundError(f"{package} holds no {ending}: {hint}")
