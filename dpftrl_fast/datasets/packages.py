# SPDX-License-Identifier: Apache-2.0
"""Data files of installed packages, by their lists of files: the packages are not imported."""

from __future__ import annotations

from pathlib import Path

__all__ = ["installed_file"]


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
