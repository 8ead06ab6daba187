# SPDX-License-Identifier: Apache-2.0
"""Install a wheel, or an sdist, into an empty environment and use it as a new user would.

    python tests/packaging/try_install.py dist/*.whl dist/*.tar.gz

A wheel is installed where no compiler can be found; only an sdist may compile. Then the first
example of the README runs, and with ``--tests`` the fast tests, also without a compiler. Times are
printed, not judged: they include pip's downloads.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPILERS = ["cc", "c++", "gcc", "g++", "clang", "clang++", "cl", "cmake", "ninja", "make"]
# The second would make every start compile all modules.
UNSET = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}
STARTS = 15


def without_compiler(bin_folder: Path) -> dict[str, str]:
    """Environment whose only programs are those of a virtual environment."""
    # Python looks for Unix tools (uname, ldconfig) on this path; they are not needed.
    kept = {k: v for k, v in os.environ.items() if k not in UNSET}
    found = {**kept, "PATH": str(bin_folder), "CC": "no-compiler", "CXX": "no-compiler"}
    for name in COMPILERS:
        if (bin_folder / name).exists():
            raise AssertionError(f"expected an environment without {name}")
    return found


def readme_example() -> str:
    """Return the first Python block of the README: NumPy only."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)[0]


def import_seconds(python: Path, environment: dict[str, str], folder: Path) -> float:
    """Median time of `import dpftrl_fast` in a process that has imported NumPy."""
    program = (
        "import time, numpy; start = time.perf_counter(); import dpftrl_fast; "
        "print(time.perf_counter() - start)"
    )
    times = [
        float(subprocess.check_output([python, "-c", program], cwd=folder, env=environment))
        for _ in range(STARTS)
    ]
    return statistics.median(times[1:])  # the first one compiles the modules


def install(distribution: Path, with_tests: bool, folder: Path) -> None:
    """Make an environment in the folder, install, and run the example and the tests."""
    start = time.perf_counter()
    home = folder / "environment"
    venv.create(home, with_pip=True)
    scripts = home / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / "python"
    bare = without_compiler(scripts)
    compiles = not distribution.name.endswith(".whl")
    environment = {**os.environ, "PYTHONPATH": ""} if compiles else bare
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    only_wheels = ["--only-binary", ":all:"]
    subprocess.run(
        [*pip, *([] if compiles else only_wheels), distribution.resolve()],
        check=True,
        env=environment,
        cwd=folder,
    )
    installed = time.perf_counter()
    subprocess.run([python, "-c", readme_example()], check=True, env=bare, cwd=folder)
    end = time.perf_counter()
    print(
        f"{distribution.name}: {end - start:.1f} s, of which environment and install "
        f"{installed - start:.1f}, first example {end - installed:.1f}; import beyond NumPy "
        f"{import_seconds(python, bare, folder) * 1000:.0f} ms",
        flush=True,
    )
    if with_tests:
        group = f"{ROOT / 'pyproject.toml'}:test-wheel"
        subprocess.run([*pip, "--upgrade", "pip>=25.1"], check=True, env=bare, cwd=folder)
        subprocess.run([*pip, *only_wheels, "--group", group], check=True, env=bare, cwd=folder)
        script = ROOT / "tests" / "packaging" / "run_fast_tests.py"
        subprocess.run([python, script, "-n", "auto"], check=True, env=bare, cwd=folder)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("distributions", nargs="+", type=Path)
    parser.add_argument("--tests", action="store_true", help="run the fast tests with the wheels")
    options = parser.parse_args()
    for distribution in options.distributions:
        wheel = distribution.name.endswith(".whl")
        with tempfile.TemporaryDirectory() as folder:
            install(distribution, options.tests and wheel, Path(folder))


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(str(error))
