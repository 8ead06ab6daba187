# SPDX-License-Identifier: Apache-2.0
"""Model files: whole or absent, without secrets, and read back."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mechanism_cases import TOEPLITZ

from dpftrl_fast import files
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.files import write_files
from dpftrl_fast.fitting import FitResult, LeastSquaresSettings, RunSettings, fit
from dpftrl_fast.fitting.model_file import check_target, load_model, model_facts, save_model
from dpftrl_fast.plots import learning_curve_png
from dpftrl_fast.tables import TableReader
from dpftrl_fast.tables.schema import Schema

SEED = 918273645
SCHEMA = Schema.from_dict(
    {
        "rows": 6,
        "target": {"name": "y", "bounds": [0, 10], "divisor": 5, "offset": 2},
        "columns": {"a": {"bounds": [0, 1]}, "c": {"categories": ["u", "v"]}},
    }
)
TEXT = "a,c,y\n0.5,u,3\n1,v,9\n0.123456,u,4\n0,v,2\n,u,5\n0.75,u,6\n"


def fitted(tmp_path: Path, seed: int | None = SEED) -> FitResult:
    (tmp_path / "t.csv").write_text(TEXT, encoding="utf-8")
    settings = RunSettings(batch_size=2, noise_seed=seed)
    return fit(TableReader(tmp_path / "t.csv", SCHEMA), settings)


def test_a_model_reads_back(tmp_path: Path) -> None:
    result = fitted(tmp_path)
    facts = save_model(tmp_path / "m", result, scores={"last": 0.5}, extra={"a.png": b"x"})
    assert sorted(os.listdir(tmp_path / "m")) == ["a.png", "model.json", "model.npz"]
    model = load_model(tmp_path / "m")
    for kind in ("last", "average", "tail"):
        np.testing.assert_array_equal(model.coefficients[kind], getattr(result, kind))
    assert model.schema == SCHEMA and model.plan == result.plan
    assert model.facts == facts == json.loads((tmp_path / "m/model.json").read_text("utf-8"))
    assert facts["epsilon"] == result.epsilon(1e-6) and facts["public_test"] == {"last": 0.5}
    assert facts["marks"] == ["reproducible, not private"]
    assert load_model(tmp_path / "m").plan.epsilon(1e-6) == result.epsilon(1e-6)


def test_a_fit_with_a_system_key_is_not_marked(tmp_path: Path) -> None:
    assert save_model(tmp_path / "m", fitted(tmp_path, seed=None))["marks"] == []


def test_no_key_and_no_private_value_is_in_a_model(tmp_path: Path) -> None:
    save_model(tmp_path / "m", fitted(tmp_path))
    key = hashlib.sha256(
        b"dpftrl_fast/seed/v1\x00i" + SEED.to_bytes((SEED.bit_length() + 7) // 8, "big")
    ).digest()
    for name in os.listdir(tmp_path / "m"):
        content = (tmp_path / "m" / name).read_bytes()
        for secret in (str(SEED).encode(), key, key.hex().encode(), b"0.123456"):
            assert secret not in content


def test_predictions_are_in_the_targets_units(tmp_path: Path) -> None:
    result = fitted(tmp_path)
    save_model(tmp_path / "m", result)
    (tmp_path / "new.csv").write_text("c,a\nv,2\nu,x\nother,0.5\n", encoding="utf-8")
    scale = np.sqrt(3.0)
    for kind in ("last", "average", "tail"):
        theta = getattr(result, kind)
        wanted = [
            theta @ [1, 0, 1, 1] / scale,
            np.nan,
            theta @ [0, 0, 0, 1] / scale,
        ]  # 0.5 is the middle
        found = load_model(tmp_path / "m").predict(tmp_path / "new.csv", kind=kind)  # type: ignore[arg-type]
        np.testing.assert_allclose(found, np.array(wanted) * 5 + 2, rtol=1e-5)
    with pytest.raises(ValueError, match="kind must be one of"):
        load_model(tmp_path / "m").predict(tmp_path / "new.csv", kind="best")  # type: ignore[arg-type]


def labelled(tmp_path: Path, labels: list[str], **change: Any) -> FitResult:
    target = {"target": {"name": "k", "categories": labels}}
    schema = Schema.from_dict({**SCHEMA.to_dict(), **target, **change})
    text = "a,c,k\n" + "".join(f"0.{i},u,{labels[i % len(labels)]}\n" for i in range(6))
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    return fit(TableReader(tmp_path / "t.csv", schema), RunSettings(batch_size=2, noise_seed=SEED))


@pytest.mark.parametrize("labels", [["no", "yes"], ["low", "mid", "high"]])
def test_labels_are_predicted(tmp_path: Path, labels: list[str]) -> None:
    several = {"task": "multinomial"} if len(labels) > 2 else {"task": "classification"}
    result = labelled(tmp_path, labels, **several)
    save_model(tmp_path / "m", result)
    model = load_model(tmp_path / "m")
    assert model.schema.task == several["task"]
    (tmp_path / "new.csv").write_text("c,a\nv,2\nu,x\nother,0.5\n", encoding="utf-8")
    x = np.array([[1, 0, 1, 1], [np.nan] * 4, [0, 0, 0, 1]]) / np.sqrt(3.0)
    for kind in ("last", "tail"):
        wanted = x @ getattr(result, kind).T
        found = model.predict(tmp_path / "new.csv", kind=kind)  # type: ignore[arg-type]
        assert found.shape == ((3,) if len(labels) == 2 else (3, 3))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-12)
        best = (wanted > 0).astype(int) if len(labels) == 2 else wanted.argmax(axis=1)
        words = model.predict_labels(tmp_path / "new.csv", kind=kind)  # type: ignore[arg-type]
        assert words == [labels[best[0]], None, labels[best[2]]]


def test_numbers_have_no_labels(tmp_path: Path) -> None:
    save_model(tmp_path / "m", fitted(tmp_path))
    with pytest.raises(ValueError, match="needs a classification, got a regression"):
        load_model(tmp_path / "m").predict_labels(tmp_path / "t.csv")


def test_a_model_of_least_squares_reads_back(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TEXT, encoding="utf-8")
    settings = LeastSquaresSettings(batch_size=2, noise_seed=SEED)
    result = fit(TableReader(tmp_path / "t.csv", SCHEMA), settings)
    facts = save_model(tmp_path / "m", result)
    model = load_model(tmp_path / "m")
    assert isinstance(model.plan, LeastSquaresPlan) and model.plan == result.plan
    assert model.facts == facts and facts["plan"]["format"] == "dpftrl_fast.LeastSquaresPlan"
    assert list(model.coefficients) == ["last"] and facts["solve"]["half_ridge"] > 0
    assert facts["solve"]["case"] in ("definite", "projected")
    (tmp_path / "new.csv").write_text("c,a\nv,2\n", encoding="utf-8")
    wanted = result.last @ [1, 0, 1, 1] / np.sqrt(3.0) * 5 + 2
    np.testing.assert_allclose(model.predict(tmp_path / "new.csv"), wanted, rtol=1e-5)
    with pytest.raises(ValueError, match="kind must be one of 'last', got 'tail'"):
        model.predict(tmp_path / "new.csv", kind="tail")


@pytest.mark.parametrize("mechanism", TOEPLITZ.values(), ids=TOEPLITZ)
def test_a_model_has_its_mechanism(tmp_path: Path, mechanism: Any) -> None:
    (tmp_path / "t.csv").write_text(TEXT, encoding="utf-8")
    kinds: list[Any] = [RunSettings]
    if mechanism.restart_every is None:
        kinds.append(LeastSquaresSettings)
    for kind in kinds:
        settings = kind(batch_size=1, mechanism=mechanism)
        result = fit(TableReader(tmp_path / "t.csv", SCHEMA), settings)
        save_model(tmp_path / "m", result, force=True)
        model = load_model(tmp_path / "m")
        assert model.plan == result.plan and model.plan.mechanism == mechanism
        assert model.facts["plan"]["mechanism"] == mechanism.to_dict()
        assert model.facts["epsilon"] == model.plan.epsilon(1e-6) <= 1.0


@pytest.mark.parametrize("kinds", [("last",), ("tail", "average", "last")])
def test_coefficients_that_do_not_fit_their_plan(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    result = fitted(tmp_path)
    if len(kinds) > 1:
        result = fit(TableReader(tmp_path / "t.csv", SCHEMA), LeastSquaresSettings(batch_size=2))
    text = json.dumps(model_facts(result))
    arrays = dict.fromkeys(kinds, result.last)
    np.savez(tmp_path / "model.npz", facts=np.array(text), **arrays)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected other coefficients"):
        load_model(tmp_path)
    if len(kinds) == 1:
        arrays = dict.fromkeys(("tail", "average", "last"), result.last[None])
        np.savez(tmp_path / "model.npz", facts=np.array(text), **arrays)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="must have shape"):
            load_model(tmp_path)


def test_a_model_is_overwritten_by_force_only(tmp_path: Path) -> None:
    result = fitted(tmp_path)
    save_model(tmp_path / "m", result)
    before = (tmp_path / "m/model.npz").read_bytes()
    with pytest.raises(FileExistsError, match="--force"):
        save_model(tmp_path / "m", result, scores={"last": 1.0})
    assert (tmp_path / "m/model.npz").read_bytes() == before
    save_model(tmp_path / "m", result, scores={"last": 1.0}, force=True)
    assert load_model(tmp_path / "m").facts["public_test"] == {"last": 1.0}


def test_a_target_that_cannot_be_written_is_found_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(FileExistsError, match="is a file"):
        check_target(tmp_path / "file")
    with pytest.raises(PermissionError, match="can be written"):
        check_target(tmp_path / "file" / "m")
    check_target(tmp_path / "new" / "deep")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("fail_at", [1, 2, 3])
@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupted_save_leaves_no_model(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fail_at: int,
    call: str,
    error: type[BaseException],
) -> None:
    result = fitted(tmp_path)
    calls = 0
    real: Any = getattr(os, call)

    def failing(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == fail_at:
            raise error
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, call, failing)
        with pytest.raises(error):
            save_model(tmp_path / "m", result, extra={"a.png": b"x"})
    left = os.listdir(tmp_path / "m") if (tmp_path / "m").exists() else []
    assert not [name for name in left if name.startswith(".") or name == "model.npz"]
    with pytest.raises(FileNotFoundError):
        load_model(tmp_path / "m")
    save_model(tmp_path / "m", result, force=True)
    load_model(tmp_path / "m")


@pytest.mark.parametrize("fail_at", [1, 2, 3])
def test_an_interrupted_overwrite_mixes_no_two_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail_at: int
) -> None:
    old, new = fitted(tmp_path), fitted(tmp_path, seed=None)
    save_model(tmp_path / "m", old, extra={"a.png": b"x"})
    calls = 0

    def failing(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == fail_at:
            raise KeyboardInterrupt
        real(*args)

    real = os.replace
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", failing)
        with pytest.raises(KeyboardInterrupt):
            save_model(tmp_path / "m", new, extra={"a.png": b"y"}, force=True)
    with pytest.raises(FileNotFoundError):  # rather no model than one beside another's JSON
        load_model(tmp_path / "m")


def test_written_files_have_the_permissions_of_new_files(tmp_path: Path) -> None:
    write_files(tmp_path / "d", {"a": b"1", "b": b"2"})
    (tmp_path / "d/plain").write_bytes(b"")
    modes = {os.stat(tmp_path / "d" / name).st_mode for name in ("a", "b", "plain")}
    assert len(modes) == 1


def test_other_files_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no model file .*model\.npz"):
        load_model(tmp_path)
    save_model(tmp_path / "m", fitted(tmp_path))
    cut = (tmp_path / "m/model.npz").read_bytes()[:500]
    for content in (b"garbage", b"", cut):
        (tmp_path / "model.npz").write_bytes(content)
        with pytest.raises(ValueError, match="is not a model file"):
            load_model(tmp_path)
    np.savez(tmp_path / "model.npz", facts=np.array('{"format": "x"}'), tail=0, average=0, last=0)
    with pytest.raises(ValueError, match="expected a model of format"):
        load_model(tmp_path)
    objects = {kind: np.array([{}], dtype=object) for kind in ("facts", "tail", "average", "last")}
    np.savez(tmp_path / "model.npz", **objects)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is not a model file"):  # a pickle is not read
        load_model(tmp_path)


def test_the_learning_curve_is_a_png() -> None:
    png = learning_curve_png(
        [1, 2, 3], [0.1, np.nan, 0.5], [0.1, 0.2, 0.3], tail=0.4, reference=0.6, title="epsilon 1"
    )
    assert png.startswith(b"\x89PNG\r\n")
    assert learning_curve_png([1], [0.1], [0.1], metric="accuracy") != png
    assert learning_curve_png([1, 2], [0.1, 0.2]).startswith(b"\x89PNG\r\n")  # without an average


def test_scales_are_stated_where_they_follow_from_the_bounds(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TEXT, encoding="utf-8")
    cases: list[tuple[Any, float]] = [(SCHEMA, 3**0.5), (SCHEMA.with_row_norm_bound(1.5), 1.5)]
    for schema, scale in cases:
        for settings in (RunSettings(batch_size=2), LeastSquaresSettings(batch_size=2)):
            facts = model_facts(fit(TableReader(tmp_path / "t.csv", schema), settings))
            assert facts["scaling"] == {
                "row_scale": pytest.approx(scale), "largest_row_norm": pytest.approx(3**0.5),
                "row_norm": 1.0, "target_offset": 2.0, "target_divisor": 5.0,
                "largest_target": pytest.approx(8 / 5),
            }  # fmt: skip
            assert facts["schema"]["columns"]["a"]["bounds"] == [0.0, 1.0]
            assert facts["schema"]["target"]["bounds"] == [0.0, 10.0]
            if isinstance(settings, LeastSquaresSettings):
                assert facts["plan"]["y_bound"] == pytest.approx(8 / 5)
                assert facts["plan"]["x_norm_bound"] == facts["scaling"]["row_norm"]
    labels = {**SCHEMA.to_dict(), "target": {"name": "c", "categories": ["u", "v"]}}
    labels = {**labels, "columns": {"a": {"bounds": [0, 1]}}, "task": "classification"}
    found = model_facts(
        fit(TableReader(tmp_path / "t.csv", Schema.from_dict(labels)), RunSettings(batch_size=2))
    )
    assert found["scaling"]["largest_target"] is None and found["scaling"]["target_offset"] is None


def test_a_model_of_before_the_scales_loads(tmp_path: Path) -> None:
    result = fitted(tmp_path)
    save_model(tmp_path / "m", result)
    with np.load(tmp_path / "m/model.npz") as held:
        arrays = dict(held)
    facts = json.loads(str(arrays["facts"][()]))
    del facts["scaling"], facts["settings"]["class_weight"]
    np.savez(tmp_path / "m/model.npz", **{**arrays, "facts": np.array(json.dumps(facts))})
    model = load_model(tmp_path / "m")
    assert model.facts == facts and model.schema == SCHEMA
