# SPDX-License-Identifier: Apache-2.0
"""Files and states written by version 0.1, and how a run resumes from them.

`data/make_written_by_0_1.py` makes the objects, saves them part-way and goes on with the functions
here; the tests load what was saved and go on with the same functions. Bits are written as the
little-endian bytes of the numbers, in hexadecimal.

Data are multiples of powers of two, so that sums do not depend on the order of their terms.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast import ChaCha, PrefixSum, PrivacyPlan, TreeNoise

# ---- Everything whose place has changed since 0.1, and nowhere else ----

try:
    from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
    from dpftrl_fast.fitting.model_file import Model, load_model
    from dpftrl_fast.ftrl import FTRL
    from dpftrl_fast.mechanisms import Tree
    from dpftrl_fast.run.journal import RunJournal
except ModuleNotFoundError:  # 0.1 itself, which the maker runs with
    from dpftrl_fast.convex.least_squares_plan import LeastSquaresPlan
    from dpftrl_fast.journal import RunJournal
    from dpftrl_fast.model_file import Model, load_model

    from dpftrl_fast.ftrl import FTRL


def prefix_sum(options: Mapping[str, Any]) -> PrefixSum:
    """Make the sum that 0.1 made of these arguments."""
    fields = {k: v for k, v in options.items() if k in ("variant", "restart_every", "complete")}
    others = {k: v for k, v in options.items() if k not in fields}
    return PrefixSum(**others, mechanism=Tree(**fields), bound="exact")


# ------------------------------------------------------------------------


__all__ = [
    "DATA",
    "DELTAS",
    "FTRL",
    "KEY",
    "REFUSED",
    "ChaCha",
    "LeastSquaresPlan",
    "Model",
    "RunJournal",
    "TreeNoise",
    "digest_of",
    "digests_of",
    "from_plain",
    "in_stream",
    "least_squares_plan",
    "load_model",
    "plan",
    "prefix_sum",
    "promises",
    "read",
    "taken",
    "to_hex",
    "to_plain",
]

DATA = Path(__file__).resolve().parents[1] / "data" / "written_by_0_1"
KEY = bytes(range(32))
DELTAS = (1e-3, 1e-6)
EPSILONS = (0.5, 8.0)

Array = NDArray[Any]
Json = dict[str, Any]


# ---- Files and bits ----


def read(name: str) -> Any:
    """Read a JSON file of the fixtures."""
    return json.loads((DATA / name).read_text("utf-8"))


def plan(name: str) -> PrivacyPlan:
    """Read a plan that 0.1 saved."""
    return PrivacyPlan.load(DATA / "plans" / f"{name}.json")


def least_squares_plan(name: str) -> LeastSquaresPlan:
    """Read a plan of least squares that 0.1 wrote."""
    return LeastSquaresPlan.from_dict(read(f"least_squares_plans/{name}.json"))


def to_hex(values: Any) -> str:
    """Return the bits of an array or number."""
    array = np.asarray(values)
    return array.astype(array.dtype.newbyteorder("<")).tobytes().hex()


def to_plain(value: Any) -> Any:
    """Return a nest of containers as data that JSON can hold, arrays and floats by their bits."""
    if isinstance(value, np.ndarray):
        kind = value.dtype.newbyteorder("<").str
        return {"array": kind, "shape": list(value.shape), "bits": to_hex(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return {"float": value.hex()} if isinstance(value, float) else value


def from_plain(value: Any) -> Any:
    """Give back what `to_plain` was given, tuples as lists."""
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"array", "shape", "bits"}:
        kind = np.dtype(value["array"])
        array = np.frombuffer(bytes.fromhex(value["bits"]), kind).reshape(value["shape"])
        return array.astype(kind.newbyteorder("="))
    if value.keys() == {"float"}:
        return float.fromhex(value["float"])
    if value.keys() == {"bytes"}:
        return bytes.fromhex(value["bytes"])
    return {key: from_plain(item) for key, item in value.items()}


def digest_of(state: Any) -> str:
    """Return a hash of a nest of containers: of types, names, order and bits."""
    return hashlib.sha256(_described(state)).hexdigest()


def digests_of(state: Mapping[str, Any]) -> dict[str, str]:
    """Return a hash of each entry of a state."""
    return {name: digest_of(item) for name, item in state.items()}


def _described(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        return f"array {value.dtype.str} {value.shape} {to_hex(value)}".encode()
    if isinstance(value, Mapping):
        items = b",".join(repr(k).encode() + b":" + _described(v) for k, v in value.items())
        return b"{" + items + b"}"
    if isinstance(value, (list, tuple)):
        name = type(value).__name__.encode()
        return name + b"[" + b",".join(_described(item) for item in value) + b"]"
    return f"{type(value).__name__} {value!r}".encode()


#: What a state of 0.1 is refused with where it has a position in the noise: 0.1 had version 1 of
#: the stream.
REFUSED = "has stream_version 1, but this (object|release) has 2: finish that run with the release"


def in_stream(state: Any, version: int) -> Any:
    """Return a nest of containers in which each state names this version of the stream.

    The versions 1 and 2 differ in rare values of float64 alone, none of which is among those of the
    fixtures, and in nothing of a state's format.
    """
    if isinstance(state, Mapping):
        return {
            name: version if name == "stream_version" else in_stream(item, version)
            for name, item in state.items()
        }
    if isinstance(state, (list, tuple)):
        return type(state)(in_stream(item, version) for item in state)
    return state


def taken(name: str, target: Path, version: int | None = None) -> Path:
    """Copy the folder of a run to `target`, as if the run had begun there.

    A run's folder knows the number of its file in the file system, and tells a copy by it. With a
    version, the folder names that version of the stream.
    """
    shutil.copytree(DATA / name, target)
    target.chmod(0o700)
    for path in target.iterdir():
        path.chmod(0o600)
    path = target / "run.json"
    fields = json.loads(path.read_bytes())
    del fields["check"]
    fields["inode"] = path.stat().st_ino
    if version is not None:
        fields.update(version=2, stream_version=version)
    canonical = json.dumps(fields, sort_keys=True)
    fields["check"] = hashlib.sha256(canonical.encode()).hexdigest()
    path.write_text(json.dumps(fields, indent=2))
    if version is not None:
        from dpftrl_fast.run.sealed_files import read_sealed, write_sealed

        checkpoint, secret = target / "checkpoint.npz", bytes.fromhex(fields["secret"])
        state = in_stream(read_sealed(checkpoint, secret, "checkpoint"), version)
        write_sealed(checkpoint, state, secret, "checkpoint")
    return target


# ---- Plans ----


def promises(of: Any) -> Json:
    """Return the figures of a plan; None where nothing can be stated."""
    zeta = of.sensitivity_squared
    return {
        "noise_multiplier": of.noise_multiplier.hex(),
        "sensitivity_squared": zeta if isinstance(zeta, int) else zeta.hex(),
        "mu": of.mu.hex(),
        "delta_floor": of.delta_floor.hex(),
        "epsilon": {
            neighbours: {repr(d): _stated(of.epsilon, d, neighbours) for d in DELTAS}
            for neighbours in ("zero-out", "replace-one")
        },
        "delta": {
            neighbours: {repr(e): _stated(of.delta, e, neighbours) for e in EPSILONS}
            for neighbours in ("zero-out", "replace-one")
        },
    }


def kept_promises(found: Json, recorded: Json) -> bool:
    """Whether figures are those that were recorded, or smaller where a looser floor was stated.

    Under "released" a plan states the figures of "exact" where the floor of the stream makes those
    of "released" larger; 0.1 did not.
    """
    lower = all(
        float.fromhex(found["delta"][kind][at]) <= float.fromhex(value)
        for kind, values in recorded["delta"].items()
        for at, value in values.items()
    )
    stated = all(
        value is None or found["epsilon"][kind][at] == value
        for kind, values in recorded["epsilon"].items()
        for at, value in values.items()
    )
    others = ("noise_multiplier", "sensitivity_squared", "mu", "delta_floor")
    return lower and stated and all(found[name] == recorded[name] for name in others)


def _stated(figure: Callable[..., float], at: float, neighbours: str) -> str | None:
    try:
        return figure(at, neighbours=neighbours).hex()
    except ValueError:
        return None


# ---- Noise ----


def noise_calls(noise: TreeNoise, calls: Iterable[Sequence[Any]]) -> list[str]:
    """Make calls (name, arguments) and return the bits of what they return, if it is an array."""
    found = (getattr(noise, name)(*arguments) for name, *arguments in calls)
    return [to_hex(value) for value in found if value is not None]


def rest_of(noise: Any) -> list[str]:
    """Take all steps that a plan's noise has left, a residual after every second step."""
    found = []
    while noise.steps_taken < noise.steps:
        call = noise.residual if noise.steps_taken % 3 == 2 else noise.step
        found.append(to_hex(call()))
    return found


# ---- Running sums ----


def records(number: int) -> list[Any]:
    """Return what a stream brings: one record a step or several, some long, some not finite."""
    rng = np.random.default_rng(number)
    small = rng.integers(-8, 9, size=(5, 3)) / 16
    long = [3.0, 4.0, 0.0]
    broken = [0.25, np.nan, 1.0]
    return [
        small[0],
        long,
        broken,
        small[1:3],
        np.zeros((0, 3)),
        [small[3], long, broken],
        np.array([1, 0, -1]),
        small[4].astype(np.float32),
    ]


def sums_of(options: Mapping[str, Any], number: int) -> Json:
    """Run a sum over a stream and return what left it."""
    sums = prefix_sum(options)
    values = [to_hex(sums.add(record)) for record in records(number)]
    return {"values": values, "epsilon": sums.epsilon(1e-6).hex()}


# ---- The bit generator ----


def draws(generator: ChaCha) -> list[str]:
    """Draw from a bit generator, and move in its stream."""
    numbers = np.random.Generator(generator)
    found = [
        to_hex(generator.random_raw(5)),
        to_hex(numbers.random(3)),
        to_hex(numbers.random(3, dtype=np.float32)),
        to_hex(generator.jumped(2).random_raw(2)),
    ]
    generator.advance(1001)
    return [*found, to_hex(generator.random_raw(3))]


# ---- Guards ----


def guarded(guard: Any, steps: Sequence[Sequence[int]]) -> list[Any]:
    """Admit steps; say before each whom the guard expects, and who may come."""
    asked = sorted({i for step in steps for i in step} | {10**6})
    found = []
    for step in steps:
        expected = guard.expected()
        found.append(
            {
                "expected": None if expected is None else expected.tolist(),
                "eligible": "".join("01"[may] for may in guard.eligible(asked).tolist()),
            }
        )
        guard.admit(step)
    return found


def realised(ledger: Any) -> Json:
    """Return the figures of a ledger at this point."""
    ids, values = ledger.values()
    return {
        "ids": to_plain(ids),
        "values": to_plain(values),
        "epsilon": ledger.epsilon_spent(1e-5).hex(),
        "realised": ledger.epsilon_spent(1e-5, realised=True).hex(),
    }


# ---- FTRL ----


def ftrl_steps(ftrl: FTRL, noise: TreeNoise, steps: Iterable[int]) -> list[Json]:
    """Take steps with sums that depend on nothing, and return the models."""
    found = []
    for t in steps:
        total = np.random.default_rng(t).integers(-16, 17, size=4) / 8
        ftrl.step(total, noise.step())
        models = {"theta": ftrl.theta, "average": ftrl.average, "tail": ftrl.tail_average}
        found.append({name: to_hex(model) for name, model in models.items()})
    return found


# ---- Estimators: they have no saved state, a seeded fit says all ----


def rows() -> tuple[Array, Array, Array]:
    """Return rows, targets and users."""
    rng = np.random.default_rng(5)
    X, y = rng.integers(-8, 9, size=(24, 3)) / 16, rng.integers(-8, 9, size=24) / 8
    return X, y, np.repeat(np.arange(12), 2)


def fitted(options: Mapping[str, Any], how: str) -> Json:
    """Fit a regressor with the linear loss, whose gradients y x do not depend on the model."""
    from dpftrl_fast.linear_model import DPFTRLRegressor

    X, y, users = rows()
    numbers = {"epochs": 1, "momentum": 0.0, **options}  # the defaults of 0.1
    model = DPFTRLRegressor(loss="linear", mechanism="tree", **numbers)
    if how == "stream":
        for start in range(0, 24, model.batch_size):
            part = slice(start, start + model.batch_size)
            model.partial_fit(X[part], y[part])
    else:
        model.fit(X, y, groups=users if how == "users" else None)
    names = ("coef_", "coef_average_", "coef_tail_", "intercept_", "intercept_tail_")
    now = {"coef_": "coef_last_", "intercept_": "intercept_last_"}  # names since then
    found = {name: to_hex(getattr(model, now.get(name, name))) for name in names}
    predicted = model.predict(np.eye(3))  # nothing is added up but zeros and the intercept
    return {**found, "predicted": to_hex(predicted), "epsilon": model.epsilon_.hex()}


# ---- A run on a journal ----

IDENTITY = {"plan": "sums of three", "shape": [3]}


def journal_steps(folder: Path, *, until: int, every: int, keep: bool = False) -> Iterator[Json]:
    """Run on a journal, from where it stands; yield what leaves each step.

    There is no checkpoint at the end: whoever stops asking for more has killed the run.
    """
    with RunJournal(folder, IDENTITY) as journal:
        state = journal.resume()
        if state is None:
            state = {"key": KEY, "sum": np.zeros(3), "notes": [1, 0.5, None, ("a", True)]}
            journal.checkpoint(state)
        total, noise = state["sum"], TreeNoise(3, 1.0, key=state["key"], dtype="float64")
        noise.advance_to(journal.step)
        while journal.step < until:
            step, kept = journal.step + 1, journal.kept()
            part = np.array([step, step**2, 2.0**-step]) if kept is None else kept["part"]
            digest = journal.digest(step, "ids", b"\x00", part, part.astype(np.float32))
            new = journal.write_ahead(step, digest, {"part": part} if keep else None)
            total = total + part
            yield {
                "step": step,
                "new": new,
                "digest": digest.hex(),
                "left": to_hex(total + noise.step()),
            }
            if step % every == 0:
                journal.checkpoint({**state, "sum": total})


def kept_state(folder: Path, identity: Mapping[str, Any] | None = None) -> Json:
    """Return where a journal stands and a hash of each entry of its last checkpoint."""
    if identity is None:
        identity = json.loads((folder / "run.json").read_bytes())["identity"]
    with RunJournal(folder, identity) as journal:
        state = journal.resume()
        assert state is not None
        return {
            "step": journal.step,
            "last": journal.last,
            "start": journal.start,
            "abandoned": [list(stretch) for stretch in journal.abandoned],
            # Cohorts keep less than 0.1 did: no realised values of ids.
            "state": digests_of({k: v for k, v in in_stream(state, 1).items() if k != "cohorts"}),
        }


# ---- Models of `dpftrl-fast fit` ----

TEST_ROWS = "a,c\n1,u\n-0.5,v\n0,w\n7,u\n0.5,other\n,v\nx,w\n"


def predicted(model: Model, path: Path) -> Json:
    """Return coefficients and predictions of a model."""
    path.write_text(TEST_ROWS, encoding="utf-8")
    found: Json = {}
    for kind, theta in model.coefficients.items():
        scores = model.predict(path, kind=kind)
        found[kind] = {"coefficients": to_plain(theta), "predictions": to_plain(scores)}
        if model.schema.task != "regression":
            found[kind]["labels"] = model.predict_labels(path, kind=kind)
    return found
