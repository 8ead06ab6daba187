# SPDX-License-Identifier: Apache-2.0
"""`DPFTRLStrategy.check` names what is wrong with a client app, and changes nothing of a run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flower_cases import (
    CLIENTS,
    LocalGrid,
    arrays,
    by_hand,
    client_app,
    every_round,
    fedavg,
    model,
    on_a_clock,
    private,
    record,
    same_bits,
    step_of,
)
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flower
from secagg_cases import SecureGrid

from dpftrl_fast.federated import AdaptiveClipping
from dpftrl_fast.federated.flower import (
    AskClients,
    CheckReport,
    DPFTRLMod,
    answer_client_id,
    dpftrl_mod,
)
from dpftrl_fast.federated.flower.secure import SecAggStrategy

Update = Callable[[dict[str, Any]], Any]


def app_that_replies(make: Callable[[dict[str, Any]], RecordDict]) -> ClientApp:
    """An app that names its user, and replies with content made of the arrays that came."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(make(arrays(message.content["arrays"])), reply_to=message)

    answer_client_id(app, lambda context: int(context.node_config["partition-id"]))
    return app


def of_arrays(found: Any) -> RecordDict:
    return RecordDict({"arrays": found, "metrics": MetricRecord({"num-examples": 1})})


class OldClient(NumPyClient):
    def fit(self, parameters: Any, config: Any) -> Any:
        return parameters, 1, {}


def as_list(sent: dict[str, Any]) -> RecordDict:
    trained = [array for array in sent.values() if array.dtype.kind == "f"]
    return of_arrays(ArrayRecord([np.asarray(array) for array in trained]))


def changed(**changes: Any) -> Callable[[dict[str, Any]], RecordDict]:
    return lambda sent: of_arrays(record({**sent, **changes}))


def fails(user: int, round_: int, sent: dict[str, Any]) -> dict[str, Any]:
    raise RuntimeError("Traceback\n  line 1\nFileNotFoundError: no such file: data.csv")


def without_train() -> ClientApp:
    app = ClientApp()
    answer_client_id(app, lambda context: 3)
    return app


def without_user() -> ClientApp:
    app = client_app()
    del app._registered_funcs["query.dpftrl_client_id"]
    return app


def of_bad_user(user: Any) -> ClientApp:
    app = without_user()
    answer_client_id(app, lambda context: user)
    return app


OLD = ClientApp(client_fn=lambda context: OldClient().to_client())

CASES: dict[str, tuple[ClientApp, str, str]] = {
    "client_fn": (OLD, "client_fn", "message API: app = ClientApp()"),
    "secure aggregation": (
        client_app(mods=[secaggplus_mod]),
        "mod of secure aggregation",
        "take secaggplus_mod",
    ),
    "no user": (without_user(), "no answer to the query", "call answer_client_id"),
    "a bad user": (of_bad_user(-77), "when it is asked for its user", "mend the client app"),
    "no training": (without_train(), "no function for training", "@app.train()"),
    "a list": (app_that_replies(as_list), "are a list, named 0, 1, 2", "with the names that came"),
    "an exception": (client_app(fails), "FileNotFoundError: no such file: data.csv", "mend"),
    "no arrays": (
        app_that_replies(lambda sent: RecordDict()),
        "no single model: expected one ArrayRecord, got 0",
        "reply with one ArrayRecord",
    ),
    "a shape": (
        app_that_replies(changed(scale=np.zeros(3, np.float32))),
        "'scale' must have shape (), got (3,)",
        "same names and shapes",
    ),
    "a name": (app_that_replies(changed(x=np.zeros(3))), "has 'x' too", "same names and shapes"),
    "no change": (
        app_that_replies(changed()),
        "the update is zero: the model came back as it was sent",
        "reply with the arrays after training",
    ),
    "NaN": (
        app_that_replies(changed(scale=np.array(np.nan, np.float32))),
        "not finite",
        "learning rate",
    ),
}


@pytest.mark.parametrize(("app", "problem", "remedy"), CASES.values(), ids=CASES)
def test_a_fault_is_named_with_its_remedy(app: ClientApp, problem: str, remedy: str) -> None:
    strategy, grid = private(), LocalGrid(app, CLIENTS)
    report = strategy.check(grid, record(model()))
    (finding,) = report.findings
    assert problem in finding.problem and remedy in finding.remedy
    assert not report.ok and report.node in grid.get_node_ids()
    assert problem in str(report) and f"remedy: {finding.remedy}" in str(report)
    assert len({m.metadata.dst_node_id for m in grid.sent}) == 1
    with pytest.raises(RuntimeError, match="remedy"):
        report.raise_for_findings()


@pytest.mark.parametrize("mods", [(), (dpftrl_mod,), (DPFTRLMod(clip=True),)], ids=str)
@pytest.mark.parametrize(
    "inner", [fedavg(), fedavg(min_available_nodes=500), flower.FedAdam(fraction_evaluate=0.0)]
)
def test_a_good_app_passes_with_any_strategy(inner: Any, mods: Any) -> None:
    before = copy.copy(vars(inner))
    strategy, grid = private(inner, aggregate="strategy"), LocalGrid(client_app(mods=mods), 3)
    report = strategy.check(grid, record(model()))
    assert report.ok and "nothing was found (not private)" in str(report)
    report.raise_for_findings()
    assert [m.metadata.message_type.split(".")[0] for m in grid.sent] == ["query", "train"]
    assert vars(inner) == before


def test_nothing_is_summed_and_no_step_is_used(tmp_path: Path) -> None:
    """The run after a check has the bits of one without, whatever the node sent."""

    def huge(user: int, round_: int, sent: dict[str, Any]) -> dict[str, Any]:
        return step_of(user, round_, sent, size=1e6 if not strategy.refused else 0.02)

    strategy, config = private(folder=tmp_path / "run"), ConfigRecord({"lr": 0.5})
    grid = LocalGrid(client_app(huge), CLIENTS)
    with strategy:
        assert strategy.check(grid, record(model()), train_config=config).ok
        assert not (tmp_path / "run").exists()
        assert "server-round" not in config
        train = next(m for m in grid.sent if m.metadata.message_type == "train")
        assert train.content["config"]["lr"] == 0.5
        grid.app = client_app()
        result = strategy.start(grid, record(model()))
        same_bits(result.arrays, by_hand())
        assert strategy.refused == {n: {} for n in range(1, 5)}


def test_a_run_with_a_check_stops_before_its_first_round() -> None:
    strategy, grid = private(), LocalGrid(OLD, CLIENTS)
    with pytest.raises(RuntimeError, match="client_fn"):
        strategy.start(grid, record(model()), check=True)
    assert strategy.rounds_done == 0
    grid.app = client_app()
    result = strategy.start(grid, record(model()), check=True)
    same_bits(result.arrays, by_hand())
    asked = len(grid.sent)
    strategy.start(grid, record(model()), check=True)  # all rounds are done
    assert len(grid.sent) == asked


@pytest.mark.parametrize("source", [AskClients(), "callable"], ids=["asked", "told"])
def test_an_app_that_was_mended_is_tried_afresh(source: Any) -> None:
    users: dict[int, int] = {}
    told = source if isinstance(source, AskClients) else users.get
    strategy, grid = private(client_id=told), LocalGrid(without_user(), 1)
    for _ in range(4):
        assert not strategy.check(grid, record(model())).ok
    grid.app = client_app()
    users[grid.first] = 0
    assert strategy.check(grid, record(model())).ok


def test_the_next_round_is_tried_in_a_run_that_is_open() -> None:
    strategy, grid = private(), LocalGrid(client_app(), CLIENTS)
    strategy.start(grid, record(model()), num_rounds=2)
    assert strategy.check(grid).ok
    assert grid.sent[-1].content["config"]["server-round"] == 3
    result = strategy.start(grid, record(model()))
    same_bits(result.arrays, by_hand())


def test_without_nodes_or_a_model_there_is_less_to_try() -> None:
    report = private().check(LocalGrid(client_app(), 0), record(model()))
    assert report == CheckReport(None, report.findings)
    assert "no node is connected" in str(report) and "start SuperNodes" in str(report)
    grid = LocalGrid(client_app(), CLIENTS)
    assert private().check(grid).ok
    assert [m.metadata.message_type for m in grid.sent] == ["query.dpftrl_client_id"]


def test_a_node_that_is_silent_and_an_id_that_is_none_are_found() -> None:
    strategy = private()
    clock = on_a_clock(strategy)
    grid = LocalGrid(client_app(), CLIENTS, order=lambda replies: [])
    report = strategy.check(grid, record(model()), timeout=30.0)
    assert "no answer yet" in report.findings[0].problem
    assert "did not answer within 30 s" in report.findings[1].problem
    assert clock.now == 30.0
    told = private(client_id=lambda node: None)
    (finding,) = told.check(LocalGrid(client_app(), 2), record(model())).findings
    assert "client_id returns no user" in finding.problem
    assert "a client must be an integer or a name" in finding.problem
    table = private(client_id=dict[int, int]().__getitem__)
    (finding,) = table.check(LocalGrid(client_app(), 2), record(model())).findings
    assert "client_id fails for node" in finding.problem and "KeyError" in finding.problem


def test_models_and_strategies_that_cannot_be_trained_are_found() -> None:
    grid = LocalGrid(client_app(), CLIENTS)
    state = {**model(), "norm.running_var": np.ones(3, np.float32)}
    (finding,) = private().check(grid, record(state)).findings
    assert "running_var" in finding.problem and "GroupNorm" in finding.problem

    class Broken(flower.FedAvg):
        def configure_train(self, *args: Any) -> Any:
            raise KeyError("lr")

    (finding,) = private(Broken(fraction_evaluate=0.0)).check(grid, record(model())).findings
    assert "configure_train of Broken fails: KeyError" in finding.problem
    (finding,) = private(fedavg(fraction_train=0.0)).check(grid, record(model())).findings
    assert "asks no node to train" in finding.problem


def test_strategies_that_do_not_take_the_cohort_are_found() -> None:
    grid = LocalGrid(client_app(), CLIENTS)

    def found(size: int, **named: Any) -> list[str]:
        report = private(fedavg(**named), cohort_size=size).check(grid, record(model()))
        return [str(finding) for finding in report.findings]

    assert found(2, min_available_nodes=2) == found(9, min_available_nodes=9) == []
    (line,) = found(2, min_available_nodes=3)
    assert "min_available_nodes=3" in line and "cohort_size=2: no round can begin" in line
    (line,) = found(2, min_available_nodes=2, min_train_nodes=3)
    assert "lower min_train_nodes of FedAvg" in line
    (line,) = found(9, min_available_nodes=2, fraction_train=0.5)
    assert "a fraction of 0.5 of the cohort_size=9" in line and "fraction_train=1.0" in line


def test_adaptive_clipping_names_no_norm() -> None:
    plan = every_round(restart_every=2)
    strategy = private(plan=plan, clipping=AdaptiveClipping(noise_multiplier=20.0))
    grid = LocalGrid(client_app(mods=[DPFTRLMod(clip=True)]), CLIENTS)
    (finding,) = strategy.check(grid, record(model())).findings
    assert "adaptive clipping" in finding.problem


def test_a_reply_that_is_no_reply_to_the_message_is_found() -> None:
    def other(replies: list[Message]) -> list[Message]:
        for reply in replies:
            if reply.has_content() and "arrays" in reply.content:
                reply.metadata.group_id = "another"
        return replies

    grid = LocalGrid(client_app(), CLIENTS, order=other)
    (finding,) = private().check(grid, record(model())).findings
    assert "belongs to another round" in finding.problem


def test_secure_aggregation_is_tried_with_its_first_message() -> None:
    strategy = SecAggStrategy(
        fedavg(), plan=every_round(), report_goal=CLIENTS, delta=1e-5, client_id=lambda node: node
    )
    grid = SecureGrid()
    assert strategy.check(grid, record(model())).ok
    assert [m.metadata.message_type for m in grid.sent] == ["train"] and grid.trained == []
    for app in (client_app(), OLD):
        grid.app = app
        (finding,) = strategy.check(grid, record(model())).findings
        assert "takes no part in secure aggregation" in finding.problem
        assert "mods=secagg_mods" in finding.remedy
