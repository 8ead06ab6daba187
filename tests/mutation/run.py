# SPDX-License-Identifier: Apache-2.0
"""Run the mutants of this folder: `make mutation`, or ``python tests/mutation/run.py``.

A mutant is a small wrong change of one source file. The package is copied to a temporary tree, one
mutant is applied at a time, and the tests that the list names for it are run there. If one of them
fails, the mutant is noticed; a mutant that survives shows a test that is missing. Results are kept
in build/mutation/results.jsonl: a mutant is run again only if its entry or its file has changed
since, and a survivor also if its tests have.

An entry ``[[mutant]]`` of a file mutants/*.toml has

    name        of the fault, in words
    file        to change
    old, new    exact text, which occurs once in the file, and what replaces it
    tests       paths for pytest; "cpp:NAME" is the C++ test of that name
    survives    optional: why no test notices it; it counts as survived
    equivalent  optional: why it changes nothing; it is run, and left out of the score
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LISTS = Path(__file__).parent / "mutants"
COPIED = ("dpftrl_fast", "csrc", "tests", "docs", "examples", "benches", ".ci")
FIELDS = {"name", "file", "old", "new", "tests", "survives", "equivalent"}
TIMEOUT = 600.0
PASSED, FAILED, NO_IMPORT = 0, 1, 2


@dataclass(frozen=True)
class Mutant:
    """A wrong change of one source file, and the tests that are to notice it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    survives: str = ""
    equivalent: str = ""

    @property
    def cpp(self) -> bool:
        """Whether the compiled modules are built again for it."""
        return not self.file.endswith((".py", ".pyi"))

    def applied(self, source: str) -> str:
        """Return the mutated source; ValueError if `old` does not occur exactly once."""
        count = source.count(self.old)
        if count != 1:
            raise ValueError(
                f"{self.name}: old must occur once in {self.file}, occurs {count} times"
            )
        if self.new == self.old:
            raise ValueError(f"{self.name}: new must differ from old")
        return source.replace(self.old, self.new)

    def digests(self, root: Path) -> dict[str, str]:
        """Return hashes of its entry with its file ("source"), and of the files of its tests."""
        entry = repr((self.name, self.file, self.old, self.new, self.tests)).encode()
        return {
            "source": _hash([entry, (root / self.file).read_bytes()]),
            "tests": _hash((root / test_file(test)).read_bytes() for test in self.tests),
        }


def _hash(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def test_file(test: str) -> str:
    """Return the path of the file of a test: tests/x.py::name, cpp:name."""
    if test.startswith("cpp:"):
        return f"csrc/tests/test_{test[4:]}.cpp"
    return test.partition("::")[0]


def load(folder: Path = LISTS) -> list[Mutant]:
    """Read the lists; ValueError if an entry is not as described above."""
    import tomllib  # of Python 3.11

    found: list[Mutant] = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text())["mutant"]:
            if not {"name", "file", "old", "new", "tests"} <= set(entry) <= FIELDS:
                raise ValueError(f"{path.name}: wrong fields {sorted(entry)}")
            found.append(Mutant(**{**entry, "tests": tuple(entry["tests"])}))
    names = [mutant.name for mutant in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"names must be distinct, got {sorted(twice)} twice")
    return found


def stale(mutants: Iterable[Mutant], root: Path = ROOT) -> list[str]:
    """Return a sentence for each mutant that cannot be applied any more."""
    found = []
    for mutant in mutants:
        try:
            mutant.applied((root / mutant.file).read_text())
        except (OSError, ValueError) as error:
            found.append(str(error))
        missing = [test for test in mutant.tests if not (root / test_file(test)).exists()]
        found += [f"{mutant.name}: no test {test}" for test in missing]
    return found


class Results:
    """The outcomes so far, a line of JSON each; the last one of a name counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                self._found[entry["name"]] = entry

    def of(self, mutant: Mutant, root: Path) -> dict[str, Any] | None:
        """Return the outcome of a mutant, if nothing that it depends on has changed."""
        entry, now = self._found.get(mutant.name), mutant.digests(root)
        if entry is None or entry["source"] != now["source"]:
            return None
        # More tests notice no less: only a survivor is tried on them again.
        return entry if entry["outcome"] == "noticed" or entry["tests"] == now["tests"] else None

    def add(self, entry: dict[str, Any]) -> None:
        """Keep an outcome."""
        self._found[entry["name"]] = entry
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


class Tree:
    """A copy of the repository with its compiled modules, in which mutants are applied."""

    def __init__(self, work: Path, log: Path, cmake: list[str], arguments: list[str]) -> None:
        self._work, self._log = work, log
        self._cmake, self._arguments = cmake, arguments
        self.root = work / "tree"
        self._build_folder = work / "cmake"
        self._stamp = time.time()
        self._server: subprocess.Popen[str] | None = None

    def prepare(self) -> None:
        """Copy what has changed, keep the times of the rest, and build the modules."""
        for name in COPIED:
            self._copy(ROOT / name, self.root / name)
        for path in ROOT.iterdir():
            if path.is_file():
                self._copy(path, self.root / path.name)
        if not self.build(["_core", "_chacha"]):  # each mutant would be noticed
            raise RuntimeError(f"the core does not build: see {self._log}")

    def _copy(self, source: Path, target: Path) -> None:
        skipped = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd")
        if source.is_dir():
            wanted = {
                path.relative_to(source)
                for path in source.rglob("*")
                if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
            }
            for old in [path for path in target.rglob("*") if path.is_file()]:
                own = "__pycache__" in old.parts or old.suffix == ".so"
                if not own and old.relative_to(target) not in wanted:
                    old.unlink()

            def changed(a: str, b: str) -> str:
                return self._copy_file(Path(a), Path(b))

            shutil.copytree(
                source, target, ignore=skipped, copy_function=changed, dirs_exist_ok=True
            )
        elif source.exists():
            self._copy_file(source, target)

    @staticmethod
    def _copy_file(source: Path, target: Path) -> str:
        if not target.exists() or source.read_bytes() != target.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            shutil.copy(source, target)
        return str(target)

    def build(self, targets: list[str]) -> bool:
        """Build these targets, and put the modules where Python finds them; False on an error."""
        if not (self._build_folder / "CMakeCache.txt").exists():
            given = ["-DCMAKE_BUILD_TYPE=Release", "-DDPFTRL_BUILD_PYTHON=ON", *self._arguments]
            given += ["-DDPFTRL_BUILD_TESTS=ON", f"-DPython_EXECUTABLE={sys.executable}"]
            command = [*self._cmake, "-S", str(self.root), "-B", str(self._build_folder), *given]
            if self.call(command, self.root) != 0:
                (self._build_folder / "CMakeCache.txt").unlink(missing_ok=True)
                raise RuntimeError(f"cmake could not configure the core: see {self._log}")
        command = [*self._cmake, "--build", str(self._build_folder), "--target", *targets]
        if self.call(command, self.root) != 0:
            return False
        for module in (self._build_folder / "dpftrl_fast").glob("*.so"):
            self._copy_file(module, self.root / "dpftrl_fast" / module.name)
        return True

    def write(self, file: str, text: str) -> None:
        """Write a source file, later than all compiled forms of it."""
        path = self.root / file
        path.write_text(text)
        # Python compares whole seconds: two mutants of one size in a second would be one.
        self._stamp = max(self._stamp + 2.0, time.time())
        os.utime(path, (self._stamp, self._stamp))

    @property
    def _environment(self) -> dict[str, str]:
        own = {
            "PYTHONPATH": str(self.root),
            "NUMBA_CACHE_DIR": str(self._work / "numba"),
            "PYTHONHASHSEED": "0",
            "DPFTRL_MUTATION": "1",
        }
        kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        return {**kept, **own}

    def _pytest(self, arguments: list[str]) -> int | None:
        """Return the exit status of pytest in a fork; None if it took too long."""
        if self._server is None:
            (self._work / "empty").mkdir(exist_ok=True)
            self._server = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("fork_server.py"))],
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log.open("ab"),
                text=True,
            )
        server = self._server
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps([str(self._work / "empty"), arguments]) + "\n")
        server.stdin.flush()
        child = int(server.stdout.readline().removeprefix("pid "))
        late = threading.Event()

        def kill() -> None:
            late.set()
            os.killpg(child, signal.SIGKILL)

        clock = threading.Timer(TIMEOUT, kill)
        clock.start()
        code = int(server.stdout.readline().removeprefix("code "))
        clock.cancel()
        return None if late.is_set() else code

    def close(self) -> None:
        """End the process of the tests."""
        if self._server is not None:
            self._server.stdin.close()  # type: ignore[union-attr]
            self._server.wait()
            self._server = None

    def call(self, command: list[str], folder: Path, timeout: float = TIMEOUT) -> int | None:
        """Run a program with its output in the log; None if it took too long, and was killed."""
        folder.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as out:
            out.write(f"\n$ {' '.join(command)}\n".encode())
            out.flush()
            # A group of its own: a mutant may leave the tests' own processes behind.
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
            try:
                return process.wait(timeout)
            except subprocess.TimeoutExpired:
                return None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def test(self, tests: tuple[str, ...]) -> tuple[str, str]:
        """Run tests up to the first failure; return the outcome and what failed."""
        for test in tests:
            if test.startswith("cpp:"):
                name = f"test_{test[4:]}"
                if not self.build([name]):
                    return "does not build", ""
                program = self._build_folder / "csrc" / "tests" / name
                if self.call([str(program)], self._work / "empty") != 0:
                    return "noticed", test
        paths = [str(self.root / test) for test in tests if not test.startswith("cpp:")]
        if not paths:
            return "survived", ""
        report = self._work / "failed.txt"
        report.unlink(missing_ok=True)
        given = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", f"--junit-xml={report}"]
        given += ["-c", str(self.root / "pyproject.toml"), "--rootdir", str(self.root), *paths]
        code = self._pytest(given)
        failed = _first_failure(report)
        if code is None:
            return "noticed", "too slow"
        if code == PASSED:
            return "survived", ""
        if code in (FAILED, NO_IMPORT) or code < 0:  # killed by a signal
            return "noticed", failed
        return "error", f"pytest ended with {code}"


def _first_failure(report: Path) -> str:
    import xml.etree.ElementTree as xml

    if not report.exists():
        return ""
    for case in xml.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            return f"{case.get('classname')}::{case.get('name')}"[:160]
    return ""


def run_one(tree: Tree, mutant: Mutant) -> tuple[str, str]:
    """Apply a mutant, run its tests, and restore the file."""
    path = tree.root / mutant.file
    source, before = path.read_text(), path.stat()
    tree.write(mutant.file, mutant.applied(source))
    try:
        modules = ["_core", "_chacha"]
        python = any(not test.startswith("cpp:") for test in mutant.tests)
        if mutant.cpp and python and not tree.build(modules):
            return "does not build", ""
        return tree.test(mutant.tests)
    finally:
        path.write_text(source)
        if not mutant.cpp:  # its compiled form may be used again
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def ordered(mutants: list[Mutant]) -> list[Mutant]:
    """Return Python first, then kernels, which Numba compiles anew, and C++ at the end."""
    return sorted(mutants, key=lambda m: (m.cpp, m.file.startswith("dpftrl_fast/kernels")))


def score(entries: list[tuple[Mutant, dict[str, Any] | None]]) -> tuple[int, int]:
    """Return the number of noticed mutants, and of those that change anything and were run."""
    counted = [entry for mutant, entry in entries if entry and not mutant.equivalent]
    return sum(entry["outcome"] == "noticed" for entry in counted), len(counted)


def table(entries: list[tuple[Mutant, dict[str, Any] | None]]) -> str:
    """Return the outcomes by folder in Markdown, and each survivor with its reason."""
    folders: dict[str, list[tuple[Mutant, dict[str, Any] | None]]] = {}
    for mutant, entry in entries:
        parts = Path(mutant.file).parts
        folders.setdefault("/".join(parts[: min(3, len(parts) - 1)]), []).append((mutant, entry))
    lines = ["| folder | mutants | noticed | survived | equivalent |", "|---|---|---|---|---|"]
    for name, held in [*sorted(folders.items()), ("all", entries)]:
        noticed, counted = score(held)
        same = sum(bool(mutant.equivalent) for mutant, _ in held)
        lines.append(f"| `{name}` | {counted} | {noticed} | {counted - noticed} | {same} |")
    noticed, counted = score(entries)
    lines.append(f"\nscore: {noticed} of {counted}, {100 * noticed / max(1, counted):.1f} %")
    if left := sum(entry is None for _, entry in entries):
        lines.append(f"not run yet: {left}")
    for mutant, entry in entries:
        if entry and entry["outcome"] != "noticed" and not mutant.equivalent:
            why = mutant.survives or "no reason is given"
            lines.append(f"- {entry['outcome']}: {mutant.name} ({mutant.file}): {why}")
        if entry and entry["outcome"] == "noticed" and (mutant.equivalent or mutant.survives):
            lines.append(f"- noticed all the same: {mutant.name}, by {entry['failed']}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the mutants that have no current outcome, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", help="only mutants with such a word in name or file")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "mutation")
    parser.add_argument("--cmake", default=os.environ.get("CMAKE", "cmake"))
    parser.add_argument("--define", action="append", default=[], help="further options of cmake")
    parser.add_argument("--check", action="store_true", help="only check that the lists apply")
    parser.add_argument("--table", action="store_true", help="only print the table so far")
    parser.add_argument("--again", action="store_true", help="also those with an outcome")
    given = parser.parse_args(arguments)
    mutants = ordered(load())
    if wrong := stale(mutants):
        print("\n".join(wrong), file=sys.stderr)
        return 1
    if given.check:
        print(f"{len(mutants)} mutants apply")
        return 0
    words = given.words
    chosen = [m for m in mutants if not words or any(w in m.name + m.file for w in words)]
    if words:  # in the order of the words
        chosen.sort(key=lambda m: next(i for i, w in enumerate(words) if w in m.name + m.file))
    given.work.mkdir(parents=True, exist_ok=True)
    results = Results(given.work / "results.jsonl")
    if not given.table:
        log = given.work / "log.txt"
        tree = Tree(given.work, log, [given.cmake], given.define)
        tree.prepare()
        due = [m for m in chosen if given.again or results.of(m, ROOT) is None]
        try:
            _run_all(tree, due, results)
        finally:
            tree.close()
    entries = [(mutant, results.of(mutant, ROOT)) for mutant in chosen]
    print(table(entries))
    noticed, counted = score(entries)
    return 0 if noticed >= 0.97 * counted else 1


def _run_all(tree: Tree, due: list[Mutant], results: Results) -> None:
    with _progress(len(due)) as advance:
        for mutant in due:
            advance(mutant.name)
            begun, digests = time.monotonic(), mutant.digests(tree.root)
            outcome, failed = run_one(tree, mutant)
            entry = {"name": mutant.name, "outcome": outcome, "failed": failed, **digests}
            results.add({**entry, "seconds": round(time.monotonic() - begun, 1)})
            if outcome != "noticed":
                print(f"{outcome}: {mutant.name} ({mutant.file})", flush=True)


class _progress:
    """A line of rich where it is installed and there is a terminal; else nothing."""

    def __init__(self, total: int) -> None:
        self._total = total

    def __enter__(self) -> Callable[[str], None]:
        try:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
            from rich.progress import TimeRemainingColumn as Remaining
        except ImportError:
            self._bar = None
            return lambda name: None
        self._bar = Progress(
            MofNCompleteColumn(), BarColumn(), Remaining(), TextColumn("{task.description}")
        )
        self._bar.start()
        task, count = self._bar.add_task("", total=self._total), iter(range(self._total))

        def advance(name: str) -> None:
            assert self._bar is not None
            self._bar.update(task, description=name, completed=next(count))

        return advance

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()


if __name__ == "__main__":
    sys.exit(main())
