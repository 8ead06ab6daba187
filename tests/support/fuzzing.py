# SPDX-License-Identifier: Apache-2.0
"""Mutated inputs for loaders, and what a loader owes for each of them.

A family is a corpus of valid inputs and a call that takes one. Inputs are made from the corpus by
a generator that the number of the input seeds: `Case 123 of guards` is the same input everywhere.
A call may take the input, or refuse it with an error of ours: ValueError or TypeError themselves
(or a class that the family names), raised by a `raise` of this package or by its compiled core,
with a sentence. Everything else is a fault: an error of another library that passes through, a
warning, an object that the refused input has changed, memory beyond a limit.

`DPFTRL_FUZZ=N` runs N inputs of each family, from number `DPFTRL_FUZZ_START` (0) on, for at most
`DPFTRL_FUZZ_SECONDS` (any) seconds a family; pytest's -s shows how many were taken and refused.
"""

from __future__ import annotations

import copy
import dis
import json
import math
import os
import random
import resource
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

import dpftrl_fast

COUNT = int(os.environ.get("DPFTRL_FUZZ", "100"))
LIMIT = float(os.environ.get("DPFTRL_FUZZ_SECONDS", "inf"))
START = int(os.environ.get("DPFTRL_FUZZ_START", "0"))
#: More address space than a refusal could need, threads and their arenas included.
ROOM = 2 << 30
#: No input is large, so no loader needs long for one; kernels may be compiled on the first.
SECONDS = 120
PACKAGE = str(Path(dpftrl_fast.__file__).parent)
_RAISES = {dis.opmap[name] for name in ("RAISE_VARARGS", "RERAISE") if name in dis.opmap}


class Fault(AssertionError):
    """An input that a loader neither takes nor refuses as it should."""


# ---- One input ----


def attempt(
    call: Callable[[], Any],
    *,
    own: tuple[type[Exception], ...] = (),
    snapshot: Callable[[], Any] | None = None,
) -> Any:
    """Make a call; return its result, or the error with which it refused. Raises `Fault`.

    `own` are further classes of ours; `snapshot` returns what a refusal must leave as it was.
    """
    before = None if snapshot is None else frozen(snapshot())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "this model may not learn")  # of public facts
            result = call()
    except Exception as error:
        if problem := complaint(error, own):
            raise Fault(f"{problem}: {_shown(error)}") from error
        if snapshot is not None and frozen(snapshot()) != before:
            raise Fault(
                f"the object has changed, though the input was refused: {_shown(error)}"
            ) from error
        return error
    return result


def complaint(error: BaseException, own: tuple[type[Exception], ...] = ()) -> str:
    """Return what is wrong with a refusal, or ""."""
    if type(error) not in (ValueError, TypeError, *own):
        return f"a {type(error).__module__}.{type(error).__name__} came through"
    if len(str(error).split()) < 3:
        return "the message is no sentence"
    last = _last(error.__traceback__)
    code = last.tb_frame.f_code
    if not code.co_filename.startswith(PACKAGE):
        return f"the error is of {code.co_filename}"
    raises = code.co_code[last.tb_lasti] in _RAISES
    # Where the compiled core refuses, the last frame of Python is the call of it.
    if not raises and not _calls_core(last):
        return f"the error is of a library that {code.co_filename} calls"
    return ""


def _last(found: TracebackType | None) -> TracebackType:
    assert found is not None
    while found.tb_next is not None:
        found = found.tb_next
    return found


_CORE_FILES = ("noise/source.py", "noise/tree.py", "noise/toeplitz.py", "_chacha.pyx")


def _calls_core(found: TracebackType) -> bool:
    name = found.tb_frame.f_code.co_filename
    if name.endswith(_CORE_FILES):
        return True
    line = traceback.extract_tb(found, limit=1)[0].line or ""
    return "_core." in line


def _shown(error: BaseException) -> str:
    lines = traceback.format_exception(error)
    return f"{str(error)[:300]!r}\n{''.join(lines[-6:])[:1500]}"


def frozen(value: Any) -> Any:
    """Return a nest of containers and arrays as a value that compares exactly."""
    if isinstance(value, Mapping):
        return ("mapping", tuple((repr(key), frozen(item)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(frozen(item) for item in value)
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if hasattr(value, "numpy") and hasattr(value, "detach"):
        return frozen(value.detach().cpu().numpy())
    return repr(value)


@contextmanager
def limited_memory(room: int = ROOM) -> Iterator[None]:
    """Let the process have so much more address space, and fail where it keeps much of it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    limit = used + room if soft == resource.RLIM_INFINITY else min(soft, used + room)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


# ---- Many inputs ----


def fuzz(
    name: str, one: Callable[[random.Random], Any], *, count: int | None = None, share: float = 1.0
) -> None:
    """Try so many inputs; `one` makes an input from a generator and returns what `attempt` does.

    `share` is for families whose inputs are slow. Prints how many were taken and how many refused,
    and how fast. A `Fault` names the input.
    """
    taken = refused = 0
    began, slowest, armed = time.process_time(), (0.0, 0), -math.inf
    faults: dict[str, str] = {}
    end = time.monotonic() + LIMIT
    before = signal.signal(signal.SIGALRM, _too_slow)
    total = max(1, math.ceil((COUNT if count is None else count) * share))
    with limited_memory():
        for number in range(START, START + total):
            start = time.monotonic()
            if start > end:
                break
            rng = random.Random(f"{name} {number}")
            if start > armed + 1:  # a system call for each input would cost more than many inputs
                signal.setitimer(signal.ITIMER_REAL, SECONDS)
                armed = start
            try:
                result = one(rng)
            except Exception as error:
                text = str(error) if isinstance(error, Fault) else _shown(error)
                faults.setdefault(_place(error), f"case {number} of {name}: {text}")
                if len(faults) >= _MOST_FAULTS:
                    break
                continue
            finally:
                slowest = max(slowest, (time.monotonic() - start, number))
            if isinstance(result, Exception):
                refused += 1
            else:
                taken += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    speed = (taken + refused) / max(time.process_time() - began, 1e-9)
    print(
        f"\nfuzz {name}: {taken} taken, {refused} refused, {len(faults)} faults,"
        f" {speed:.0f} a second of processor time, at most {slowest[0]:.2f} s (case {slowest[1]})"
    )
    if faults:
        raise Fault("\n\n".join(faults.values()))
    # Some inputs in a hundred or a thousand are taken: a small sample may have none.
    both = bool(taken and refused)
    assert both or taken + refused < _SAMPLE, f"{name}: all inputs went one way"


_MOST_FAULTS = 12
_SAMPLE = 3000


def _too_slow(*_: Any) -> None:
    raise RuntimeError(f"the input took more than {SECONDS} seconds")


def _place(error: BaseException) -> str:
    """Return where an error came from, to name each place once."""
    source = error.__cause__ or error
    last = traceback.extract_tb(source.__traceback__)
    own = [frame for frame in last if frame.filename.startswith(PACKAGE)] or last
    return f"{str(error)[:30]} {type(source).__name__} {own[-1].filename}:{own[-1].lineno}"


# ---- Mutations of plain data ----


def deep(levels: int) -> list[Any]:
    """Return a list in a list in a list .."""
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


_NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 7, 255, 2**31 - 1, 2**31, 2**32, 2**40, 2**46, 2**53 + 1, 2**63 - 1, 2**63,
    2**64, 10**12, 10**30, 10**400, -(2**63), -(10**400), 0.0, -0.0, 0.5, 1.0, 1.5, 1e-320, 1e300,
    1.7976931348623157e308, math.nan, math.inf, -math.inf,
)  # fmt: skip
_PLAIN: tuple[Any, ...] = (
    None, True, False, "", "x", "tree", "0", "NaN", "\x00", "\ud800", "é", "1" * 5000, "a" * 3000,
    [], [0], [[]], [None], [1, 2], [[1, 2], [3]], {}, {"kind": "tree"}, {"": {}}, [{}, 1.5],
)  # fmt: skip


#: Values that only Python has, each made when it is chosen: some are large.
_LARGE: tuple[Callable[[], Any], ...] = (
    lambda: range(10**6),
    lambda: np.broadcast_to(np.int64(1), (10**6,)),
    lambda: np.broadcast_to(np.float64(0), (1000, 1000)),
    lambda: deep(5000),
    lambda: "a" * 10**5,
)
_OF_PYTHON: tuple[Callable[[], Any], ...] = (
    lambda: b"",
    lambda: b"\xff\xfe",
    lambda: (),
    lambda: (1,),
    lambda: {1: 2},
    lambda: {None: 1, "a": 2, (1, 2): 3},
    lambda: {1, 2},
    lambda: 1j,
    lambda: object(),
    lambda: int,
    lambda: deep(100),
    lambda: deep(1500),
    lambda: 10**5000,
    lambda: np.int64(-5),
    lambda: np.uint64(2**63 + 1),
    lambda: np.float32(np.nan),
    lambda: np.longdouble(1.5),
    lambda: np.bool_(True),
    lambda: np.datetime64("2020-01-01"),
    lambda: np.zeros(0),
    lambda: np.zeros(3, np.int64),
    lambda: np.ones((2, 2), np.float32),
    lambda: np.array(7),
    lambda: np.array("text"),
    lambda: np.array([1, "a", None], dtype=object),
    lambda: np.array([1.5, np.nan, np.inf]),
    lambda: np.array([2**63], np.uint64),
    lambda: np.array([1j]),
    lambda: np.zeros(2, [("a", "i4")]),
    lambda: np.arange(6)[::2],
    lambda: np.frombuffer(bytes(33), np.uint8)[1:].view(np.float64),
    lambda: np.zeros(3, ">f8"),
    lambda: np.array(["2020"], "M8[D]"),
    lambda: np.array([b"a"]),
    lambda: range(3),
    lambda: iter([1]),
    lambda: range(3000),
    lambda: np.broadcast_to(np.int64(1), (3000,)),
    lambda: np.broadcast_to(np.float64(0), (50, 50)),
)


def value_of(rng: random.Random, *, plain: bool) -> Any:
    """Return some value; `plain`: one that JSON can hold."""
    pick = rng.random()
    if pick < 0.45:
        return rng.choice(_NUMBERS)
    if plain or pick < 0.75:
        return copy.copy(rng.choice(_PLAIN))
    return rng.choice(_LARGE if pick > 0.9975 else _OF_PYTHON)()


_DEEPEST = 20


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of each value in a nest of dictionaries and lists, the whole first."""
    yield at
    if len(at) > _DEEPEST:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            yield from paths(item, (*at, key))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value[:50]):
            yield from paths(item, (*at, i))


_known: dict[int, tuple[Any, list[tuple[Any, ...]]]] = {}


def _places(seed: Any) -> list[tuple[Any, ...]]:
    """Return the paths of a member of a corpus, which no mutation changes, from the second on."""
    found = _known.get(id(seed))
    if found is None or found[0] is not seed:
        if len(_known) > 3000:  # seeds that were made for one input
            _known.clear()
        found = _known[id(seed)] = (seed, list(paths(seed)))
    return found[1]


def _get(value: Any, at: Sequence[Any]) -> Any:
    for key in at:
        value = value[key]
    return value


def _with(value: Any, at: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    """Return a copy in which the container at a place is replaced by what `change` makes of it."""
    if not at:
        return change(value)
    if isinstance(value, dict):
        return {k: _with(v, at[1:], change) if k == at[0] else v for k, v in value.items()}
    items = [_with(v, at[1:], change) if i == at[0] else v for i, v in enumerate(value)]
    return tuple(items) if isinstance(value, tuple) else items


def mutated(
    value: Any, rng: random.Random, others: Sequence[Any] = (), *, plain: bool = False
) -> Any:
    """Return a copy of nested data with one to four changes; `plain`: of what JSON can hold."""
    for change in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        places = list(paths(value)) if change else _places(value)
        at = rng.choice(places if rng.random() < 0.05 else places[1:] or places)
        value = _with(value, at, lambda old: _changed(old, rng, others, plain))
    return value


def _changed(old: Any, rng: random.Random, others: Sequence[Any], plain: bool) -> Any:
    pick = rng.random()
    if pick < 0.3:
        return value_of(rng, plain=plain)
    if pick < 0.4 and others:
        other = rng.choice(others)
        return _get(other, rng.choice(_places(other)))
    if isinstance(old, bool):
        return rng.choice((not old, int(old), str(old)))
    if isinstance(old, int):
        near = (
            old + 1,
            old - 1,
            -old,
            old * 2,
            old ^ (1 << rng.randrange(64)),
            float(old) if abs(old) < 2**900 else 0.5,
            str(old % 10**9),
        )
        return rng.choice(near)
    if isinstance(old, float):
        return rng.choice((old * 2, -old, old * 1e300, old * 1e-300, old + 1e-12, str(old), [old]))
    if isinstance(old, str):
        return _changed_text(old, rng)
    if isinstance(old, dict):
        return _changed_dict(old, rng, plain)
    if isinstance(old, (list, tuple)):
        return type(old)(_changed_list(list(old), rng, plain))
    if isinstance(old, np.ndarray) and not plain:
        return _changed_array(old, rng)
    return value_of(rng, plain=plain)


def _changed_text(old: str, rng: random.Random) -> Any:
    at = rng.randrange(len(old) + 1)
    return rng.choice(
        (
            old[:at],
            old[:at] + rng.choice("0fgz\x00é\ud800 ") + old[at + 1 :],
            old + old[:10],
            old.upper(),
            old.encode("utf-8", "surrogatepass"),
            [old],
        )[: 4 if rng.random() < 0.8 else 6]
    )


def _changed_dict(old: dict[Any, Any], rng: random.Random, plain: bool) -> dict[Any, Any]:
    new = dict(old)
    keys = list(new)
    pick = rng.randrange(5)
    if pick == 0 and keys:
        del new[rng.choice(keys)]
    elif pick == 1:
        odd: tuple[Any, ...] = ("", "kind", "version", "\ud800", "x" * 1000)
        new[rng.choice(odd if plain else (*odd, 7, None, (1,), b"key"))] = value_of(
            rng, plain=plain
        )
    elif pick == 2 and len(keys) > 1:
        a, b = rng.sample(keys, 2)
        new[a], new[b] = new[b], new[a]
    elif pick == 3 and keys:
        a = rng.choice(keys)
        new[f"{a}_"] = new.pop(a)
    elif keys:
        a = rng.choice(keys)
        new[a] = value_of(rng, plain=plain)
    return new


def _changed_list(old: list[Any], rng: random.Random, plain: bool) -> list[Any]:
    pick = rng.randrange(6)
    if pick == 0:
        return old[: rng.randrange(len(old) + 1)]
    if pick == 1:
        return old + old
    if pick == 2:
        return [*old, value_of(rng, plain=plain)]
    if pick == 3:
        return old[::-1]
    if pick == 4:
        return [*old, *([old[-1]] if old else [0]) * rng.randrange(1000)]
    return [[item] for item in old]


def _changed_array(old: np.ndarray[Any, Any], rng: random.Random) -> Any:
    if old.size > 10**5:  # one that is large in its shape only
        return value_of(rng, plain=False)
    pick = rng.randrange(9)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if pick == 0:
            return old[:-1] if old.ndim else old
        if pick == 1:
            return old.reshape(-1)[::-1]
        if pick == 2:
            kinds = ("f4", "f8", "i8", "u8", "i1", "c16", "O", "S3", "U3", "?", ">f8", "f2", "g")
            kind = rng.choice(kinds)
            if old.dtype.kind in "SUOM" and kind != "O":
                return old.tolist()
            return (
                np.where(np.isfinite(old), old, 0).astype(kind)
                if old.dtype.kind in "f"
                else old.astype(kind)
            )
        if pick == 3:
            return old[None]
        if pick == 4 and old.size and old.dtype.kind in "iuf":
            new = old.copy()
            new.flat[rng.randrange(old.size)] = rng.choice(
                (0, 1, 100)
                if old.dtype.kind in "ui"
                else (0, np.nan, np.inf, -1, 1e300 if old.dtype.itemsize == 8 else 1e30)
            )
            return new
        if pick == 5:
            return old.tolist()
        if pick == 6:
            return np.repeat(old, 2, axis=0) if old.ndim else old
        if pick == 7:
            return old.copy("F") if old.ndim > 1 else np.repeat(old, 2)[::2] if old.ndim else old
        return value_of(rng, plain=False)


# ---- Mutations of bytes ----

_TOKENS: tuple[bytes, ...] = (
    b"\x00", b"\xff", b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\xff\xff\xff\x7f", b"\xed\xa0\x80",
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\n", b"\r", b"\r\n", b"\t", b"NaN", b"null",
    b"Infinity", b"-", b"1e999", b"1000000000000", b"9" * 400, b"9" * 5000, b"[" * 3000, b"\\ud800",
    b'{"a":' * 3000, b"\xef\xbb\xbf", b"&a [*a, *a]", b"!!python/object:x ", b"<<: *a", b"- ",
    b"2020-01-01", b"1_0", b"? ", b"|", b">", b"%YAML 1.3\n", b"---\n", b"...", b"=", b"~", b"0o8",
    b"1:30", b"0x",
)  # fmt: skip


def mutated_bytes(data: bytes, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """Return bytes with one to six changes: flips, cuts, repetitions, tokens, parts of others."""
    new = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        at = rng.randrange(len(new) + 1)
        to = min(len(new), at + rng.choice((1, 1, 2, 4, 8, 16, 64)))
        pick = rng.randrange(9)
        if pick == 0 and at < len(new):
            new[at] ^= 1 << rng.randrange(8)
        elif pick == 1 and at < len(new):
            new[at] = rng.randrange(256)
        elif pick == 2:
            del new[at:to]
        elif pick == 3:
            new[at:at] = new[at:to] * rng.choice((1, 2, 50))
        elif pick == 4:
            new[at:at] = rng.choice(_TOKENS)
        elif pick == 5:
            new[at:to] = rng.choice(_TOKENS)
        elif pick == 6 and rng.random() < 0.3:
            del new[at:]
        elif pick == 7 and others:
            other = rng.choice(others)
            begin = rng.randrange(len(other) + 1)
            new[at:to] = other[begin : begin + rng.randrange(200)]
        elif at < len(new):
            size = rng.choice((1, 2, 4, 8))
            number = rng.choice((0, 1, 2**7, 2**31, 2**32 - 1, 10**12, 2**63, 2**64 - 1))
            new[at : at + size] = (number % 256**size).to_bytes(size, rng.choice(("little", "big")))
    return bytes(new)


def json_bytes(value: Any, rng: random.Random) -> bytes:
    """Return plain data as JSON, NaN and surrogates included; deep nests as text."""
    try:
        text = json.dumps(value, ensure_ascii=rng.random() < 0.8)
        return text.encode("utf-8", "surrogatepass")
    except (TypeError, ValueError, RecursionError):
        return b"[" * 5000
