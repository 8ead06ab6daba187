# SPDX-License-Identifier: Apache-2.0
"""Check the files of a release: `python tests/packaging/check_dist.py dist`."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

MOST_BYTES = 3 * 10**6
#: Of the files of the wheel: modules and their types, what `cimport` reads, the two extensions.
SUFFIXES = {".py", ".pyi", ".pxd", ".so", ".pyd"}
NEEDED = ["py.typed", "_chacha.pxd", "_chacha.pyi", "_core.pyi", "__init__.py"]
#: To build, and to run the tests.
NEEDED_SOURCES = [
    "CMakeLists.txt", "LICENSE", "Makefile", "PKG-INFO", "README.md", "constraints.txt",
    "cmake/zig.cmake", "csrc/include/dpftrl/noise/tree.hpp", "csrc/tests/CMakeLists.txt",
    "dpftrl_fast/_chacha.pyx", "dpftrl_fast/_chacha.pxd", "pyproject.toml", "tests/conftest.py",
    "tests/data/stream_v2.json",
]  # fmt: skip
JUNK = re.compile(
    r"(^|/)(build|dist|\.git|\.venv|__pycache__|\.[a-z]+_cache)/"
    r"|\.(so|pyd|dylib|o|a|whl|pyc|egg-info)$"
)


def check_wheel(path: Path) -> None:
    """Compare the size, the names and the build flags of a wheel with those expected."""
    assert path.stat().st_size < MOST_BYTES, f"{path.name} has {path.stat().st_size} bytes"
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        extensions = [name for name in names if name.endswith((".so", ".pyd"))]
        content = b"".join(wheel.read(name) for name in extensions)
    own = [PurePosixPath(n) for n in names if ".dist-info/" not in n and not n.endswith("/")]
    assert {p.parts[0] for p in own} == {"dpftrl_fast"}, sorted({p.parts[0] for p in own})
    stray = [str(p) for p in own if p.suffix not in SUFFIXES and p.name != "py.typed"]
    assert not stray, f"stray files: {stray}"
    for needed in NEEDED:
        assert f"dpftrl_fast/{needed}" in names, needed
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    modules = sorted(PurePosixPath(name).name.partition(".")[0] for name in extensions)
    assert modules == ["_chacha", "_core"], modules
    # build_info holds the flags: portable but for the files of one instruction set each.
    assert b"-ffp-contract=off" in content or b"/fp:precise" in content
    for flag in (b"-march=", b"-mtune=", b"-mcpu=", b"-ffast-math", b"-Ofast"):
        assert flag not in content, flag
    print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB, {len(own)} files")


def check_sdist(path: Path) -> None:
    """Compare the names in a source distribution with those expected."""
    with tarfile.open(path) as archive:
        members = [m for m in archive.getmembers() if m.isfile()]
    names = [m.name.partition("/")[2] for m in members]
    junk = [name for name in names if JUNK.search(name)]
    assert not junk, f"stray files: {junk}"
    missing = sorted(set(NEEDED_SOURCES) - set(names))
    assert not missing, f"missing: {missing}"
    print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB, {len(names)} files")


def main(folder: Path) -> None:
    """Check all distributions of a folder, with the public tools too."""
    wheels, sdists = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    assert wheels and len(sdists) == 1, f"expected wheels and one sdist in {folder}"
    for wheel in wheels:
        check_wheel(wheel)
    check_sdist(sdists[0])
    bin_folder = Path(sys.executable).parent
    run = [[bin_folder / "twine", "check", "--strict", *wheels, *sdists]]
    run.append([bin_folder / "check-wheel-contents", *wheels])
    run += [[bin_folder / "auditwheel", "show", w] for w in wheels if "linux" in w.name]
    for command in run:
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
