# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast fit``: methods, tasks, epochs and users, what is told of them, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run, run_json

from dpftrl_fast.accounting import FixedEpochs, SinglePass
from dpftrl_fast.cli import fit_run
from dpftrl_fast.convex.glm.fit import GLMRun
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.fitting import make_plan
from dpftrl_fast.fitting.model_file import load_model
from dpftrl_fast.mechanisms import ToeplitzMechanism, Tree
from dpftrl_fast.mechanisms.workload import Workload
from dpftrl_fast.plan.from_budget import plan_of

SCHEMA: dict[str, Any] = {
    "rows": 40,
    "target": {"name": "y", "bounds": [-2, 2]},
    "columns": {"a": {"bounds": [-1, 1]}, "c": {"categories": ["u", "v"]}},
}
LABELS = ["low", "mid", "high"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with training rows, test rows without users, and schemas."""
    rng = np.random.default_rng(0)
    for name, rows in (("t.csv", 40), ("test.csv", 30)):
        text = ["a,c,y,k,m" + (",who" if name == "t.csv" else "")]
        for i in range(rows):
            a, c = rng.uniform(-1, 1), "uv"[rng.integers(2)]
            y = a + (c == "v")
            cells = [f"{a:.6f}", c, f"{y:.6f}", ("no", "yes")[y > 0.5], LABELS[(y > 0) + (y > 1)]]
            text.append(",".join([*cells, f"p{i % 8}"] if name == "t.csv" else cells))
        (tmp_path / name).write_text("\n".join(text) + "\n", encoding="utf-8")
    for target in ("y", "k", "m"):
        labels = {"k": ["no", "yes"], "m": LABELS}.get(target)
        schema = SCHEMA if labels is None else {**SCHEMA, "target": {"categories": labels}}
        schema = {**schema, "target": {**schema["target"], "name": target}}
        (tmp_path / f"{target}.json").write_text(json.dumps(schema), encoding="utf-8")
    return tmp_path


def arguments(folder: Path, schema: str = "y", **change: object) -> list[object]:
    """Return a call of fit; `None` leaves an option out, `True` is a flag."""
    options: dict[str, object] = {
        "schema": folder / f"{schema}.json", "out": folder / "m", "batch_size": 4, "delta": 1e-3,
        **change,
    }  # fmt: skip
    words: list[object] = ["fit", folder / "t.csv"]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [value])]
    return words


# ---- Least squares ----


def test_least_squares(folder: Path) -> None:
    words = arguments(folder, method="least-squares", test_public=folder / "test.csv", epochs=1)
    output = run(*words).stdout
    for word in ("one record replaced by zero", "replace-one", "for y x", "norm of x 1, |y| 1",
                 "x x^T", "10 steps", "R^2, last", "learning_curve.png"):  # fmt: skip
        assert word in output
    assert "tail average" not in output and "clip norm" not in output
    plan = load_model(folder / "m").plan
    assert isinstance(plan, LeastSquaresPlan) and plan.epsilon(1e-3) <= 1.0
    assert plan.participation == SinglePass(10)


@pytest.mark.parametrize(("epsilon", "warned"), [(0.1, True), (1e3, False)])
def test_least_squares_with_too_much_noise_is_warned_of(
    folder: Path, epsilon: float, warned: bool
) -> None:
    stderr = run(*arguments(folder, method="least-squares", epsilon=epsilon)).stderr
    assert ("warning: this model may not learn: the noise in the sum of x x^T" in stderr) == warned


def test_what_json_tells_of_least_squares(folder: Path) -> None:
    facts = run_json(
        *arguments(folder, method="least-squares", test_public=folder / "test.csv", split=0.5,
                   ridge_factor=1, radius=0.2, noise_multiplier=9, noise_seed=3),
        "--these-rows-are-public",
    )  # fmt: skip
    assert facts["settings"] == {
        "method": "least-squares", "batch_size": 4, "epochs": 1, "radius": 0.2, "split": 0.5,
        "ridge_factor": 1.0, "alpha": 0.0, "sample_weight_bound": 1.0,
    }  # fmt: skip
    assert list(facts["scores"]) == ["last", "non-private ridge"]
    assert facts["plan"]["split"] == 0.5 and facts["plan"]["noise_multiplier"] == 9.0
    assert facts["solve"]["case"] in ("interior", "boundary", "hard")
    theta = load_model(folder / "m").coefficients["last"]
    assert np.linalg.norm(theta) <= 0.2 + 1e-9


def test_rows_can_be_bounded_more_tightly(folder: Path) -> None:
    facts = run_json(*arguments(folder, method="least-squares", x_norm_bound=1.2, noise_seed=3))
    assert facts["schema"]["row_norm_bound"] == 1.2 and facts["plan"]["x_norm_bound"] == 1.0
    other = run_json(*arguments(folder, x_norm_bound=1.2), "--force")
    assert other["schema"]["row_norm_bound"] == 1.2


# ---- Tasks ----


def test_several_classes(folder: Path) -> None:
    facts = run_json(*arguments(folder, "m", test_public=folder / "test.csv", epsilon=50))
    assert facts["metric"] == "accuracy" and 0 <= facts["scores"]["last"] <= 1
    assert facts["settings"]["loss"] == "multinomial" and facts["schema"]["task"] == "multinomial"
    model = load_model(folder / "m")
    assert model.coefficients["tail"].shape == (3, 4)
    assert model.predict(folder / "test.csv").shape == (30, 3)
    assert set(model.predict_labels(folder / "test.csv")) <= set(LABELS)


def test_two_classes_as_several(folder: Path) -> None:
    facts = run_json(*arguments(folder, "k", task="multinomial", loss="hinge"))
    assert facts["schema"]["task"] == "multinomial" and facts["settings"]["loss"] == "hinge"
    assert load_model(folder / "m").coefficients["last"].shape == (2, 4)
    facts = run_json(*arguments(folder, "k", task="classification"), "--force")
    assert facts["settings"]["loss"] == "logistic"
    assert load_model(folder / "m").coefficients["last"].shape == (4,)


def test_losses_and_their_parameter(folder: Path) -> None:
    words = arguments(folder, loss="quantile", loss_param=0.9, task="regression")
    settings = run_json(*words)["settings"]
    assert (settings["loss"], settings["loss_param"]) == ("quantile", 0.9)
    words = arguments(folder, loss="epsilon_insensitive")
    assert run_json(*words, "--force")["settings"]["loss_param"] == 0.1


# ---- Epochs ----


def test_epochs(folder: Path) -> None:
    words = arguments(folder, epochs=3, momentum=0.5, l1=0.01, radius=1, clip_norm=1)
    facts = run_json(*words, "--noise-seed", 1)
    model = load_model(folder / "m")
    assert model.plan == plan_of(
        FixedEpochs(10, 3, reshuffle=False),
        epsilon=1.0,
        noise_multiplier=None,
        delta=1e-3,
        clip_norm=1.0,
        workload=Workload(momentum=0.5),
        dtype="float64",
    )
    assert isinstance(model.plan.mechanism, ToeplitzMechanism)
    assert facts["settings"]["epochs"] == 3 and facts["epsilon"] <= 1.0
    output = run(*words, "--force").stdout
    assert "3 epochs of 10 fixed batches, in one order" in output and "30 steps" in output
    one = run_json(*arguments(folder, mechanism="tree"), "--force")["plan"]
    assert one["bound"] == "released"
    exact = run_json(*arguments(folder, mechanism="tree", bound="exact"), "--force")["plan"]
    assert exact["bound"] == "exact" and exact["noise_multiplier"] > one["noise_multiplier"]


@pytest.mark.parametrize("method", ["ftrl", "least-squares"])
def test_the_mechanism_is_chosen_or_a_tree(folder: Path, method: str) -> None:
    once = {"epochs": 1}
    words = arguments(folder, method=method, mechanism="tree", **once)
    printed = run(*words).stdout
    plan = load_model(folder / "m").plan
    assert plan.mechanism == (Tree() if method == "ftrl" else "tree")
    assert "tree" in printed
    vanilla = arguments(folder, method=method, variant="vanilla")
    assert run_json(*vanilla, "--force")["plan"]["variant"] == "vanilla"
    auto = run(*arguments(folder, method=method, **once), "--force").stdout
    plan = load_model(folder / "m").plan
    if method == "ftrl":
        assert isinstance(plan.mechanism, ToeplitzMechanism)
        assert plan.layout.describe().split()[0] in auto
    else:
        assert plan.mechanism == "tree"
    refused = run(*arguments(folder, method=method, mechanism="taps"), "--force", code=2)
    assert "taps" in refused.stderr


def test_the_learning_rate_is_a_number_or_a_rule(folder: Path) -> None:
    auto, given = (
        run_json(*arguments(folder, **change), "--force")
        for change in ({}, {"learning_rate": "auto"})
    )
    assert auto["settings"] == given["settings"]
    theory = run_json(*arguments(folder, learning_rate="theory"), "--force")["settings"]
    assert 0.0 < theory["learning_rate"] != auto["settings"]["learning_rate"]
    number = run_json(*arguments(folder, learning_rate=0.25), "--force")["settings"]
    assert number["learning_rate"] == 0.25


def test_the_plan_is_made_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, printed, used = [], [], []
    begin = GLMRun.__init__
    facts = fit_run.guarantee_facts

    def make(*arguments: Any) -> Any:
        made.append(make_plan(*arguments))
        return made[-1]

    def show(plan: Any, *arguments: Any) -> Any:
        printed.append(plan)
        return facts(plan, *arguments)

    def start(self: Any, objective: Any, plan: Any, **options: Any) -> None:
        used.append(plan)
        begin(self, objective, plan, **options)

    monkeypatch.setattr(fit_run, "make_plan", make)
    monkeypatch.setattr("dpftrl_fast.fitting.run.make_plan", make)
    monkeypatch.setattr(fit_run, "guarantee_facts", show)
    monkeypatch.setattr(GLMRun, "__init__", start)
    run(*arguments(folder))
    assert len(made) == len(printed) == len(used) == 1
    assert made[0] is printed[0] and made[0] is used[0]


# ---- Users ----


def test_users(folder: Path) -> None:
    words = arguments(folder, group_column="who", users=10, epochs=1)
    words += ["--test-public", folder / "test.csv"]
    output = run(*words).stdout
    assert "one user replaced by zero" in output and "one user replaced by another" in output
    assert "record replaced" not in output and "3 steps" in output
    model = load_model(folder / "m")
    assert model.plan.participation == SinglePass(3)
    assert model.schema.group_column == "who" and model.schema.users == 10
    assert model.predict(folder / "test.csv").shape == (30,)  # no group column is needed there
    facts = run_json(*words, "--these-rows-are-public", "--force")
    assert facts["neighbours"] == "one user replaced by zero"
    assert "below 1/users" in run(*words[:-2], "--force", "--delta", 0.2).stderr


def test_users_of_the_schema(folder: Path) -> None:
    schema = {**SCHEMA, "users": 8, "group_column": "who"}
    (folder / "y.json").write_text(json.dumps(schema), encoding="utf-8")
    assert run_json(*arguments(folder, epochs=1))["plan"]["participation"]["steps"] == 2
    facts = run_json(*arguments(folder, users=13, epochs=2), "--force")
    assert facts["plan"]["participation"]["steps_per_epoch"] == 4


def test_validation_of_labels_and_users(folder: Path) -> None:
    words = arguments(folder, "m", group_column="who", users=10)
    output = run(*words, "--validate").stdout
    assert "NOT private" in output and "users in the file" in output and "who" in output
    report = run_json(*words, "--validate")
    assert report["users_in_file"] == 8 and report["rows_of_the_largest_user"] == 5
    assert report["columns"]["m"] == {"missing": 0, "unknown": 0} and not (folder / "m").exists()


# ---- What is refused, before step 1 ----

LEAST_SQUARES = {"method": "least-squares"}


@pytest.mark.parametrize(
    ("schema", "change", "words"),
    [
        ("k", LEAST_SQUARES, "least squares needs a numeric target"),
        ("y", {**LEAST_SQUARES, "epochs": 2}, "--epochs is not supported by least squares"),
        ("y", {**LEAST_SQUARES, "learning_rate": 1},
         "--learning-rate is not supported by least squares"),
        ("y", {**LEAST_SQUARES, "momentum": 0}, "--momentum is not supported by least squares"),
        ("y", {**LEAST_SQUARES, "l1": 0.1}, "--l1 is not supported by least squares"),
        ("y", {**LEAST_SQUARES, "clip_norm": 1}, "--clip-norm is not supported by least squares"),
        ("y", {**LEAST_SQUARES, "loss": "huber"}, "--loss is not supported by least squares"),
        ("y", {**LEAST_SQUARES, "loss_param": 1}, "--loss-param is not supported by least"),
        ("y", {**LEAST_SQUARES, "bound": "exact"}, "--bound is not supported by least squares"),
        ("y", {**LEAST_SQUARES, "group_column": "who", "users": 9}, "protects single records"),
        ("y", {**LEAST_SQUARES, "split": 0}, "split must be a finite number > 0 and < 1, got 0.0"),
        ("y", {**LEAST_SQUARES, "ridge_factor": "nan"}, "ridge_factor must be a finite number > 0"),
        ("y", {**LEAST_SQUARES, "radius": 0}, "radius must be a finite number in [1e-100, 1e+100]"),
        ("y", {"method": "ftrl", "split": 0.5}, "--split needs --method least-squares"),
        ("y", {"method": "ftrl", "ridge_factor": 2}, "--ridge-factor needs --method least-squares"),
        ("y", {"task": "classification"}, "task must be 'regression' for a target with bounds"),
        ("m", {"task": "classification"}, "task must be 'multinomial' for a target with 3"),
        ("k", {"task": "regression"}, "task must be 'classification' or 'multinomial'"),
        ("m", {"loss": "logistic"},
         "loss of a multinomial task must be one of 'multinomial', 'hinge', got"),
        ("y", {"loss": "multinomial"}, "loss of a regression task must be one of 'squared', "),
        ("y", {"loss_param": 2}, "loss_param must be None for the loss squared, got 2.0"),
        ("y", {"loss": "quantile", "loss_param": 1},
         "loss_param must be a finite number > 0 and < 1, got 1.0"),
        ("y", {"loss": "huber", "loss_param": "nan"},
         "loss_param must be a finite number, got nan"),
        ("y", {"learning_rate": "fast"}, "--learning-rate must be a number, auto or theory, got"),
        ("y", {"learning_rate": 0}, "learning_rate must be a finite number > 0, got 0.0"),
        ("y", {"epochs": 0}, "epochs must be an integer >= 1, got 0"),
        ("y", {"x_norm_bound": 0}, "row_norm_bound must be a finite number > 0, got 0.0"),
        ("y", {"x_norm_bound": "inf"}, "row_norm_bound must be a finite number"),
        ("y", {"l1": -1}, "l1 must be a finite number >= 0"),
        ("y", {"radius": -1}, "radius must be a finite number in [1e-100, 1e+100], got -1.0"),
        ("y", {"users": 9}, "--users needs --group-column"),
        ("y", {"group_column": "who"}, "users must be declared for the group column 'who'"),
        ("y", {"group_column": "who", "users": 0}, "users must be an integer >= 1, got 0"),
        ("y", {"group_column": "who", "users": 7}, "expected at most 7 users"),
        ("y", {"group_column": "y", "users": 9}, "another column than the target 'y'"),
        ("y", {"group_column": "nobody", "users": 9}, "expected one column 'nobody'"),
        ("y", {"group_column": ""}, "group_column"),
        ("y", {"group_column": "who", "users": 9, "rows": 39}, "expected at most 39 rows"),
        ("y", {"rows": 39, "epochs": 2}, "expected at most 39 rows"),
        ("m", {"these_rows_are_public": True},
         "--these-rows-are-public needs --test-public and a numeric"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(
    folder: Path, schema: str, change: dict[str, object], words: str
) -> None:
    result = run(*arguments(folder, schema, **change), code=2)
    assert words in result.stderr and result.stderr.startswith("error: ")
    assert "Traceback" not in result.output and not (folder / "m").exists()
