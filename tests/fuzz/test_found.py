# SPDX-License-Identifier: Apache-2.0
"""Inputs that mutation found: each was once taken, or refused in words of another library."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing import attempt, complaint, deep, limited_memory
from journal_cases import IDENTITY, begun
from mechanism_cases import MECHANISMS

from dpftrl_fast import PrivacyPlan, TreeNoise, accounting
from dpftrl_fast._validate import choice, equal, integer, shown
from dpftrl_fast.accounting.guard.guard import Guard
from dpftrl_fast.accounting.participation import participation_from_dict
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.federated.cohorts import Cohorts
from dpftrl_fast.federated.ids import client_id
from dpftrl_fast.files import array_in, arrays_in
from dpftrl_fast.fitting.model_file import load_model
from dpftrl_fast.ftrl import FTRL
from dpftrl_fast.mechanisms import (
    BandedInverse,
    BandedToeplitz,
    BufferedToeplitz,
    mechanism_from_dict,
)
from dpftrl_fast.run.account import RunAccount
from dpftrl_fast.run.journal import RunJournal
from dpftrl_fast.run.run_file import _check
from dpftrl_fast.run.sealed_files import write_sealed
from dpftrl_fast.tables.schema import Schema, SchemaError

#: Values with which comparisons, or the words of an error, failed.
ODD: dict[str, Any] = {
    "an array": np.ones(2),
    "an empty array": np.zeros(0),
    "a structured array": np.zeros(2, [("a", "i4")]),
    "a large array": np.broadcast_to(np.float64(0), (10**4, 10**4)),
    "a deep list": deep(5000),
    "an integer of 5000 digits": 10**5000,
}
odd = pytest.mark.parametrize("value", ODD.values(), ids=ODD)


def refused(call: Any, *own: type[Exception], snapshot: Any = None) -> str:
    error = attempt(call, own=own, snapshot=snapshot)
    assert isinstance(error, Exception), "the input was taken"
    return str(error)


# ---- Comparisons and words ----


@odd
def test_any_value_is_compared_and_shown(value: Any) -> None:
    assert not equal(value, 1) and not equal(value, "x") and not equal(value, [1, {"a": None}])
    assert len(shown(value)) <= 200
    refused(lambda: choice("name", value, ("a", "b")))
    refused(lambda: integer("name", value, 0, 7))


def test_a_nest_that_holds_itself_many_times_is_shown_in_little_room() -> None:
    nest: Any = [0]
    for _ in range(60):
        nest = [nest] * 10
    assert len(shown(nest)) <= 200


@pytest.mark.parametrize(
    ("value", "expected", "same"),
    [(True, 1, False), (1, True, False), (np.int64(3), 3, True), (np.array(3), 3, True),
     (np.bool_(True), True, True), ("a", "a", True), (b"a", "a", False), ([1], (1,), False),
     ({"a": [1]}, {"a": [1]}, True), ({"a": 1, "b": 2}, {"a": 1}, False), (None, None, True),
     (float("nan"), 1.0, False), (1.0, 1, True)],
)  # fmt: skip
def test_values_that_were_read_equal_the_plain_ones(value: Any, expected: Any, same: bool) -> None:
    assert equal(value, expected) is same


# ---- States ----


@odd
@pytest.mark.parametrize(
    "name", ["format", "stream_version", "std", "reproducible", "t", "vectors"]
)
def test_states_of_noise(name: str, value: Any) -> None:
    noise = TreeNoise(3, 1.5, seed=1)
    noise.step()
    state = {**noise.state_dict(), name: value}
    refused(lambda: noise.load_state_dict(state), snapshot=noise.state_dict)


@odd
@pytest.mark.parametrize("name", ["version", "steps", "t", "l1_weight"])
def test_states_of_ftrl(name: str, value: Any) -> None:
    held = FTRL(np.zeros(3), learning_rate=0.5, batch_size=2, steps=9)
    state = {**held.state_dict(), name: value}
    refused(lambda: held.load_state_dict(state), snapshot=held.state_dict)


@odd
@pytest.mark.parametrize("name", ["format", "version", "declaration", "step"])
def test_states_of_guards(name: str, value: Any) -> None:
    guard = Guard(accounting.SinglePass(3))
    state = {**guard.state_dict(), name: value}
    refused(lambda: guard.load_state_dict(state), snapshot=guard.state_dict)


@pytest.mark.parametrize("change", [
    {"param_groups": [{}]}, {"param_groups": 7}, {"param_groups": [7]}, {"l1_weights": 1.5},
    {"l1_weights": ["x"]}, {"vectors": 3}, {"start": np.ones(2)}, {"format": np.ones(2)},
    {"schedule": np.ones(2)}, {"schedule": {"kind": "sgd", "rates": 1, "thresholds": None}},
    {"batch_size": ODD["a structured array"]}, {"plan": ODD["an array"]}, {"noise": 3},
], ids=repr)  # fmt: skip
def test_states_of_optimisers(change: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    from dpftrl_runs import ready

    optimizer, _ = ready(noise_seed=1)
    state = {**optimizer.state_dict(secrets=True), **change}
    refused(
        lambda: optimizer.load_state_dict(state),
        snapshot=lambda: optimizer.state_dict(secrets=True),
    )


@pytest.mark.parametrize("change", [
    {"vectors": 7}, {"vectors": [[["x"]]]}, {"vectors": [[[0, 1, "x"]]]}, {"common": np.ones(2)},
    {"ranges": np.ones(2)}, {"vectors": [[np.array(1)]]},
], ids=repr)  # fmt: skip
def test_the_noise_in_states_of_optimisers(change: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    from dpftrl_runs import ready

    optimizer, _ = ready(noise_seed=1)
    state = optimizer.state_dict(secrets=True)
    state["noise"] = {**state["noise"], **change}
    refused(
        lambda: optimizer.load_state_dict(state),
        snapshot=lambda: optimizer.state_dict(secrets=True),
    )


@pytest.mark.parametrize("name", ["params", "param_names"])
def test_a_saved_group_brings_no_parameters(name: str) -> None:
    torch = pytest.importorskip("torch")
    from dpftrl_runs import ready

    optimizer, members = ready(noise_seed=1)
    state = optimizer.state_dict(secrets=True)
    state["param_groups"][0][name] = [torch.zeros(3)]
    refused(
        lambda: optimizer.load_state_dict(state),
        snapshot=lambda: optimizer.state_dict(secrets=True),
    )
    assert optimizer.param_groups[0]["params"] == members


@pytest.mark.parametrize("declared", [7, "[", "{}", "[]", None, "[" * 5000], ids=str)
def test_states_of_ledgers_for_cohorts(declared: Any) -> None:
    cohorts = Cohorts(PrivacyPlan(1.0, 4.0, accounting.SinglePass(10)))
    state = {**cohorts.state_dict(), "format": "dpftrl_fast.Ledger", "declaration": declared}
    refused(lambda: cohorts.load_state_dict(state), snapshot=cohorts.state_dict)


# ---- Plans ----


@odd
@pytest.mark.parametrize("name", ["format", "version", "bound", "variant", "complete"])
def test_plans(name: str, value: Any) -> None:
    data = {**PrivacyPlan(1.0, 2.0, accounting.SinglePass(3)).to_dict(), name: value}
    refused(lambda: PrivacyPlan.from_dict(data))
    least = LeastSquaresPlan(
        1.0, 2.0, 3.0, accounting.SinglePass(3), mechanism=MECHANISMS["two taps"]
    ).to_dict()
    refused(lambda: LeastSquaresPlan.from_dict({**least, name: value}))


@pytest.mark.parametrize("text", ["[" * 5000, "9" * 5000, "1e999", "\ud800", "NaN"])
def test_files_of_plans(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    refused(lambda: PrivacyPlan.load(tmp_path / "plan.json"))


@pytest.mark.parametrize("mechanism", [
    BandedInverse((1.0, 1e300)), BufferedToeplitz((0.5,), (1e300,)), BandedToeplitz((1.0, -1e39)),
], ids=repr)  # fmt: skip
def test_coefficients_beyond_the_dtype_are_refused_without_a_warning(mechanism: Any) -> None:
    refused(lambda: mechanism.rounded("float32"))


@odd
def test_kinds_and_versions(value: Any) -> None:
    for mechanism in MECHANISMS.values():
        for name in {"kind", "version"} & set(mechanism.to_dict()):
            data = {**mechanism.to_dict(), name: value}
            refused(lambda data=data: mechanism_from_dict(data))
    refused(lambda: participation_from_dict({"kind": value, "steps": 3}))


LONG = 10**5000  # Python writes no integer of so many digits


def test_integers_that_no_file_can_hold() -> None:
    refused(lambda: integer("name", LONG))
    assert integer("name", -(2**8191)) == -(2**8191)
    for mechanism in MECHANISMS.values():
        if "restart_every" in mechanism.to_dict():
            data = {**mechanism.to_dict(), "restart_every": LONG}
            refused(lambda data=data: mechanism_from_dict(data))
    plan = LeastSquaresPlan(
        1.0, 2.0, 3.0, accounting.SinglePass(3), mechanism=MECHANISMS["two taps"]
    ).to_dict()
    plan["mechanism"] = {**plan["mechanism"], "restart_every": LONG}
    refused(lambda: LeastSquaresPlan.from_dict(plan))
    refused(lambda: TreeNoise(3, 1.0, seed=LONG))


def test_seeds_of_loaders_that_no_file_can_hold() -> None:
    torch = pytest.importorskip("torch")
    from dpftrl_fast.torch.loader import FixedOrderLoader

    plan = PrivacyPlan(1.0, 2.0, accounting.FixedEpochs(5, 3))
    data = torch.utils.data.TensorDataset(torch.zeros(10, 1))
    refused(lambda: FixedOrderLoader(data, 2, plan, order_seed=LONG))
    loader = FixedOrderLoader(data, 2, plan)
    state = {**loader.state_dict(), "order_seed": LONG}
    refused(lambda: loader.load_state_dict(state), snapshot=loader.state_dict)


# ---- Schemas and tables ----

SCHEMA: dict[str, Any] = {
    "rows": 9,
    "target": {"name": "y", "bounds": [0, 10]},
    "columns": {"a": {"bounds": [0, 1]}},
}


@odd
def test_schemas(value: Any) -> None:
    for data in (
        {**SCHEMA, "version": value},
        {**SCHEMA, "task": value},
        {**SCHEMA, "rows": value},
        {**SCHEMA, "users": value},
        {**SCHEMA, "intercept": value},
        {**SCHEMA, "target": {**SCHEMA["target"], "name": value}},
        {**SCHEMA, "columns": {"a": {"bounds": [value, 1]}}},
        {**SCHEMA, "columns": {"a": {"categories": [value]}}},
        {**SCHEMA, "columns": {"a": {"other": value}}},
    ):
        refused(lambda data=data: Schema.from_dict(data), SchemaError)


@pytest.mark.parametrize("change", [
    {"target": {"name": "y\ud800", "bounds": [0, 1]}}, {"columns": {"\ud800": {"bounds": [0, 1]}}},
    {"columns": {"a": {"categories": ["u", "\ud800"]}}}, {"users": 3, "group_column": "\ud800"},
    {"target": {"name": "y", "categories": ["\udcff", "v"]}},
], ids=ascii)  # fmt: skip
def test_text_of_schemas_has_a_form_in_utf_8(change: dict[str, Any]) -> None:
    """Such a category was taken, and ended `predict` in an error of Arrow."""
    words = refused(lambda: Schema.from_dict({**SCHEMA, **change}), SchemaError)
    assert "must be valid Unicode" in words and words.isascii()


@pytest.mark.parametrize("text", ["[" * 5000, "9" * 5000, "2020-13-45", "!!float x", "{? [a] : 1}"])
@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_files_of_schemas(tmp_path: Path, text: str, suffix: str) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / f"s.{suffix}"
    path.write_text(text, encoding="utf-8")
    refused(lambda: Schema.load(path), SchemaError)


@pytest.mark.parametrize("last", [
    "? *a8\n: 1\n", "rows: {? *a8 : 1}\n", "rows: !!set {? *a8}\n", "rows: {<<: [*m7, *m7]}\n",
    "<<: *m7\n", "? [1]\n: 1\n", "? {a: 1}\n: 1\n",
], ids=repr)  # fmt: skip
def test_a_short_schema_describes_no_endless_value(tmp_path: Path, last: str) -> None:
    """Aliases of aliases: what they stand for would need gigabytes as a key, or merged."""
    pytest.importorskip("yaml")
    lines = ["a0: &a0 [x]", "m0: &m0 {x: 1}"]
    for i in range(1, 9):
        lines.append(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]")
        lines.append(f"m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 10)}]}}")
    merges = "m7" in last
    text = "\n".join(line for line in lines if merges or line[0] == "a")
    (tmp_path / "s.yaml").write_text(f"{text}\n{last}", encoding="utf-8")
    with limited_memory(200 << 20):
        words = refused(lambda: Schema.load(tmp_path / "s.yaml"), SchemaError)
    # Without the rule the memory ran out, in another library's words or none.
    assert "keys must be plain text" in words


@pytest.mark.parametrize("target", ["categories: *c", "bounds: *c", "name: &w [*w]"])
def test_aliases_of_a_schema_are_few_when_written_out(tmp_path: Path, target: str) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "s.yaml"
    head = "rows: 9\ntarget:\n  name: y\n  bounds: &b [0, 10]\ncolumns:\n"
    path.write_text(f"{head}  a: {{bounds: *b}}\n  b: {{bounds: *b}}\n", encoding="utf-8")
    assert Schema.load(path).n_features == 3
    many = ", ".join(f"c{i}" for i in range(2000))
    lines = [f"  c: {{categories: &c [{many}]}}"]
    lines += [f"  x{i}: {{{target}}}" for i in range(2000 if "*c" in target else 1)]
    path.write_text(head + "\n".join(lines), encoding="utf-8")
    assert "aliases" in refused(lambda: Schema.load(path), SchemaError)


@pytest.mark.parametrize("header", [b'"a\rb",y\n1,2\n', b"a," + b"b" * 200_000 + b"\n1,2\n"])
def test_headers_that_are_no_record(tmp_path: Path, header: bytes) -> None:
    pytest.importorskip("pyarrow")
    from dpftrl_fast.tables import TableReader
    from dpftrl_fast.tables.draft import draft_schema
    from dpftrl_fast.tables.reader import TableError

    (tmp_path / "t.csv").write_bytes(header)
    refused(lambda: TableReader(tmp_path / "t.csv", Schema.from_dict(SCHEMA)), TableError)
    refused(lambda: draft_schema(tmp_path / "t.csv"), TableError)


def test_damaged_gzip(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from dpftrl_fast.tables import TableReader
    from dpftrl_fast.tables.reader import TableError

    data = gzip.compress(b"a,y\n" + b"0.5,3\n" * 10)
    path = tmp_path / "t.csv.gz"
    for broken in (data[:-4] + b"\0\0\0\0", data[:30], data[:10] + b"\xff" * 20):
        path.write_bytes(broken)
        refused(lambda: [*TableReader(path, Schema.from_dict(SCHEMA)).blocks()], TableError)


def test_damaged_parquet_shows_no_row(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("sklearn")
    from pyarrow import parquet

    from dpftrl_fast.linear_model import DPFTRLRegressor
    from dpftrl_fast.tables import TableReader
    from dpftrl_fast.tables.draft import draft_schema
    from dpftrl_fast.tables.reader import TableError

    path = tmp_path / "t.parquet"
    table = pa.table({"a": [0.5, 0.123456, 1.0], "y": [3.0, 4.0, 5.0]})
    parquet.write_table(table, path, compression="none")
    whole = path.read_bytes()
    words = set()
    for at in range(4, len(whole) - 8, 29):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        for call in (
            lambda: [*TableReader(path, Schema.from_dict(SCHEMA)).blocks()],
            lambda: draft_schema(path),
            lambda: DPFTRLRegressor(x_norm_bound=1.0, y_bound=1.0, batch_size=2).fit(
                str(path), "y"
            ),
        ):
            result = attempt(call, own=(TableError,))
            if isinstance(result, ValueError):
                words.add(str(result))
    assert words and not any("0.123456" in text for text in words)


# ---- Files of models and runs ----


def header_of(shape: str, descr: str = "<f8") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize("shape", [
    "(1000000000000,)", "(-1,)", "(0, 9223372036854775807, 9)", "(1,", "(2.0,)", "(2**70,)", "x",
    "(" + "1," * 40 + ")", "(True,)",
])  # fmt: skip
def test_headers_of_arrays(shape: str) -> None:
    refused(lambda: array_in(header_of(shape) + bytes(8)))


@pytest.mark.parametrize("descr", ["|O", "(2,)f8", "nonsense", "|S0", "<U0", "|V0"])
def test_dtypes_of_arrays(descr: str) -> None:
    for shape, size in (("(1,)", 8), ("(1,)", 0), ("(1000000000000,)", 0)):
        refused(lambda shape=shape, size=size: array_in(header_of(shape, descr) + bytes(size)))


def test_a_model_allocates_no_more_than_its_bytes(tmp_path: Path) -> None:
    import zipfile

    path = tmp_path / "model.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("facts.npy", bytes(10**8))  # a hundred kilobytes
    assert "uncompressed" in refused(lambda: load_model(tmp_path))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("facts.npy", header_of("(1000000000000,)"))
    assert "got 0" in refused(lambda: load_model(tmp_path))
    np.savez(path, facts=np.array("[" * 5000), tail=1.0, average=1.0, last=1.0)
    refused(lambda: load_model(tmp_path))
    facts = np.array('{"format": "dpftrl_fast/model/1"}')
    np.savez(path, facts=facts, tail=1.0, average=1.0, last=1.0)
    refused(lambda: load_model(tmp_path), SchemaError)
    assert [*arrays_in(path)] == ["facts", "tail", "average", "last"]


def zip_of(members: list[tuple[str, int, int]], body: bytes) -> bytes:
    """A zip file without compression whose members (name, offset, size) lie anywhere in a body."""
    directory = b""
    for name, at, size in members:
        word = name.encode()
        check = zlib.crc32(body[at + 30 + len(word) :][:size])
        directory += struct.pack(
            "<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 0, 0, 0, check, size, size, len(word),
            0, 0, 0, 0, 0, at,
        ) + word  # fmt: skip
    end = struct.pack(
        "<4s4H2IH", b"PK\5\6", 0, 0, len(members), len(members), len(directory), len(body), 0
    )
    return body + directory + end


def local_header(name: str, size: int) -> bytes:
    word = name.encode()
    return struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 0, 0, 0, 0, size, size, len(word), 0) + word


def test_members_of_a_model_share_no_bytes(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    one = header_of("(1000,)") + bytes(8000)
    whole = local_header("a.npy", len(one)) + one
    path.write_bytes(zip_of([("a.npy", 0, len(one))], whole))
    assert [*arrays_in(path)] == ["a"]
    path.write_bytes(zip_of([("a.npy", 0, len(one))] * 3, whole))
    assert "share" in refused(lambda: arrays_in(path))
    # A member within the bytes of another one.
    inner = local_header("b.npy", len(one)) + one
    outer = header_of(f"({len(inner)},)", "|u1") + inner
    body = local_header("a.npy", len(outer)) + outer
    members = [("a.npy", 0, len(outer)), ("b.npy", len(body) - len(inner), len(one))]
    path.write_bytes(zip_of(members, body))
    assert "share" in refused(lambda: arrays_in(path))
    path.write_bytes(zip_of([("a.npy", 0, len(one)), ("a.npy", 0, len(one))], whole + bytes(10000)))
    assert "twice" in refused(lambda: arrays_in(path))


@pytest.mark.parametrize("change", [
    {"secret": "x" * 64}, {"secret": True}, {"secret": "00"}, {"inode": "7"}, {"forked": 1},
    {"identity": [1]}, {"identity": 7},
], ids=repr)  # fmt: skip
def test_files_of_runs(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = begun(tmp_path / "run")
    fields = {**json.loads((folder / "run.json").read_bytes()), **change}
    del fields["check"]
    (folder / "run.json").write_text(json.dumps({**fields, "check": _check(fields)}), "utf-8")
    refused(lambda: RunJournal(folder, IDENTITY, allow_fork=True))


@pytest.mark.parametrize(
    "text", ["[" * 5000, '{"format": "dpftrl_fast.RunJournal", "x": 1e999}', "9" * 5000]
)
def test_files_of_runs_that_are_no_plain_data(tmp_path: Path, text: str) -> None:
    folder = begun(tmp_path / "run")
    (folder / "run.json").write_text(text, "utf-8")
    refused(lambda: RunJournal(folder, IDENTITY))


def test_a_stray_file_beside_kept_states_is_left_alone(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", 3)
    (folder / "kept-x-y.npz").write_bytes(b"x")
    with RunJournal(folder, IDENTITY) as journal:
        journal.resume()
        journal.checkpoint({"step": 0})
    assert (folder / "kept-x-y.npz").exists()


@pytest.mark.parametrize("value", [deep(5000), 10**5000], ids=["deep", "long"])
def test_states_that_cannot_be_sealed(tmp_path: Path, value: Any) -> None:
    refused(lambda: write_sealed(tmp_path / "s.npz", {"a": value}, b"s" * 32, "label"))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "state", [[1], 7, None, {LONG: 1}, {"a": {-LONG: 1}}, {1.5: 2}], ids=lambda x: type(x).__name__
)
def test_states_that_are_no_mapping_of_short_keys(tmp_path: Path, state: Any) -> None:
    refused(lambda: write_sealed(tmp_path / "s.npz", state, b"s" * 32, "label"))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("abandoned", [7, ((1,),), (1, 2), "ab", ((1, 2, 3),)], ids=repr)
def test_accounts_of_runs(abandoned: Any) -> None:
    plan = PrivacyPlan(1.0, 8.0, accounting.SinglePass(20))
    refused(lambda: RunAccount(plan, 0, abandoned, 1))


# ---- Ids and arguments ----


def test_ids_of_clients() -> None:
    from dpftrl_fast.federated import PrivateRounds

    refused(lambda: client_id(10**5000))
    plan = PrivacyPlan(1.0, 4.0, accounting.SinglePass(10))
    rounds = PrivateRounds([np.zeros(3)], plan=plan, report_goal=2)
    refused(lambda: rounds.begin_round(np.array(7)))
    refused(lambda: rounds.eligible(np.zeros((2, 2), np.int64)))


@pytest.mark.parametrize(("name", "content"), [
    ("o.txt", b"1 \xff\n"), ("o.npy", b"\x93NUMPY\x01\x00\x05\x00(\n"),
    ("o.npy", header_of("(1000000000000,)", "<i8")), ("o.txt", b"9" * 5000),
])  # fmt: skip
def test_files_of_ids(tmp_path: Path, name: str, content: bytes) -> None:
    pytest.importorskip("typer")
    from dpftrl_fast.cli.patterns import read_order

    (tmp_path / name).write_bytes(content)
    refused(lambda: read_order(tmp_path / name))


# ---- The harness itself ----


def test_the_harness_notices() -> None:
    def other(error: Exception) -> Any:
        def call() -> Any:
            raise error

        return call

    for error in (
        KeyError("x"),
        ValueError("of the test, not of the package"),
        OverflowError("a b c"),
    ):
        with pytest.raises(AssertionError):
            attempt(other(error))
    with pytest.raises(AssertionError, match="has changed"):
        counter = iter(range(9))
        attempt(lambda: integer("name", "x"), snapshot=lambda: next(counter))
    assert attempt(lambda: 7) == 7
    try:
        integer("name", "x")
    except TypeError as error:
        assert complaint(error) == ""
