# SPDX-License-Identifier: Apache-2.0
"""`UserLedger`: totals against brute force, crashes at each write, copies, two processes."""

from __future__ import annotations

import math
import os
import pickle
import shutil
import sys
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr

from dpftrl_fast import PrivacyPlan
from dpftrl_fast import accounting as acc
from dpftrl_fast.federated import BufferedServer, PrivateRounds, ServerDPFTRL, UserLedger
from dpftrl_fast.federated.user_ledger import SPENT
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.run import RunAccount

DELTA = 1e-6
KEY, USERS_KEY = b"n" * 32, b"u" * 32
MODEL = [np.zeros(3)]


def plan_of(epsilon, steps=6, participation=None):
    return PrivacyPlan.calibrate(
        epsilon=epsilon,
        delta=DELTA,
        clip_norm=1.0,
        participation=participation or acc.MinSeparation(steps, steps, 1),
        mechanism=Tree(),
    )


def exact_delta(mu, epsilon):
    tail = math.exp(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu)))
    return float(ndtr(mu / 2 - epsilon / mu)) - tail


# ---- Totals ----


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
@pytest.mark.parametrize("folder", [False, True])
def test_totals_are_those_of_brute_force(tmp_path, neighbours, folder):
    rng = np.random.default_rng(5)
    where = tmp_path / "ledger" if folder else None
    ledger = UserLedger(where, 4.5, DELTA, neighbours=neighbours)
    plans = [plan_of(epsilon) for epsilon in (0.7, 1.0, 1.9, 2.5, 3.0, 4.0)]
    tasks = [ledger.task(f"task {i}", plan) for i, plan in enumerate(plans)]
    inside = defaultdict(set)
    refused = 0
    for _ in range(60):
        i = int(rng.integers(len(plans)))
        users = rng.permutation(40)[: rng.integers(1, 20)].tolist()
        before = tasks[i].eligible(users).tolist()
        admitted = tasks[i].charge(f"{user}" if user % 2 else user for user in users).tolist()
        assert before == admitted
        for user, came in zip(users, admitted, strict=True):
            joined = inside[user] | {i}
            mu = math.sqrt(sum(plans[k].mu ** 2 for k in joined))
            shift = 2 if neighbours == "replace-one" else 1
            assert came == (exact_delta(shift * mu, 4.5) <= DELTA * (1 - 2**-10))
            refused += not came
            if came:
                inside[user] = joined
    assert refused > 20
    for user in range(40):
        spent = 0.0
        if inside[user]:
            parts = acc.compose([plans[i] for i in sorted(inside[user])])
            spent = parts.epsilon(DELTA, neighbours=neighbours)
        assert ledger.epsilon_of(user) == pytest.approx(spent, rel=1e-12)
        assert spent <= 4.5
    worst = max(map(ledger.epsilon_of, range(40)))
    assert ledger.guarantee.epsilon(DELTA, neighbours=neighbours) == worst
    assert [task.users for task in tasks] == [
        sum(i in joined for joined in inside.values()) for i in range(len(tasks))
    ]
    if folder:
        again = UserLedger(where, 4.5, DELTA, neighbours=neighbours)
        assert [again.epsilon_of(u) for u in range(40)] == [ledger.epsilon_of(u) for u in range(40)]
        assert again.guarantee == ledger.guarantee and again.tasks == ledger.tasks


def test_one_task_may_have_the_whole_budget_and_no_more():
    ledger = UserLedger(None, 8.0, DELTA)
    assert ledger.task("all", plan_of(8.0)).charge(["Lear"]).tolist() == [True]
    assert ledger.task("more", plan_of(8.001)).charge(["Kent"]).tolist() == [False]
    assert ledger.task("little", plan_of(0.01)).charge(["Lear", "Kent"]).tolist() == [False, True]


@pytest.mark.parametrize("tasks", [1, 2, 3, 7])
@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
def test_shares_of_tasks_fit_together_and_one_more_does_not(tasks, neighbours):
    ledger = UserLedger(None, 8.0, DELTA, neighbours=neighbours)
    plan = plan_of(ledger.epsilon_per_task(tasks))
    for i in range(tasks):
        assert ledger.task(f"{i}", plan).charge(["Lear"]).all()
    assert not ledger.task("one more", plan).charge(["Lear"]).any()
    assert 7.9 < ledger.guarantee.epsilon(DELTA, neighbours=neighbours) <= 8.0


def test_the_finite_tail_of_the_noise_has_a_bound_of_its_own():
    # mu of both together is far within the budget; the tails of the second one are not.
    first = PrivacyPlan(1.0, 4.0, acc.SinglePass(1))
    second = PrivacyPlan(1.0, 0.25, acc.SinglePass(1))
    assert DELTA * 2**-10 < second.delta_floor < DELTA
    ledger = UserLedger(None, 200.0, DELTA)
    assert ledger.task("b", second).charge(["Kent"]).all()
    assert ledger.task("a", first).charge(["Lear"]).all()
    assert not ledger.task("b", second).eligible(["Lear"]).any()


# ---- Servers ----


def finished(server, clients, update):
    """Run all rounds of a server; the clients that were turned away, round by round."""
    away = []
    while server.rounds_done < server.plan.steps:
        now = server.begin_round(clients)
        away.append(dict(now.turned_away))
        for client in now.cohort:
            now.add(client, update(client, server.rounds_done), token=now.token)
        server.end_round()
    return away


def updates(client, step):
    rng = np.random.default_rng([sum(map(ord, client)), step])
    return [rng.normal(size=3)]


def test_a_name_is_no_list_of_names():
    task = UserLedger(None, 8.0, 1e-6).task("keyboard", PrivacyPlan(1.0, 4.0, acc.SinglePass(3)))
    for call in (task.eligible, task.charge):
        with pytest.raises(TypeError, match="clients must be an iterable of ids, got str"):
            call("Hamlet")
    assert task.users == 0


def test_a_server_turns_away_whose_budget_is_spent():
    ledger = UserLedger(None, 8.0, DELTA)
    plan = plan_of(ledger.epsilon_per_task(2))
    for label in ("one", "two"):
        with ServerDPFTRL(MODEL, plan=plan, report_goal=2, ledger=ledger.task(label, plan)) as s:
            finished(s, ["Lear", "Kent"] if label == "one" else ["Lear"], updates)
    server = PrivateRounds(MODEL, plan=plan, report_goal=2, ledger=ledger.task("three", plan))
    assert server.eligible(["Lear", "Kent", "Edgar"]).tolist() == [False, True, True]
    now = server.begin_round(["Lear", "Kent", "Edgar"])
    assert now.cohort == ("Kent", "Edgar") and now.absent == 0
    assert dict(now.turned_away) == {"Lear": "its budget is spent in other tasks"}
    assert now.add("Lear", [np.ones(3)]) is not None  # refused, with the reason
    assert now.members.size == 2
    # A round that is abandoned leaves the users charged.
    server.abandon_round()
    assert ledger.epsilon_of("Edgar") > 0 == ledger.epsilon_of("Fool")


def test_a_task_that_has_a_user_keeps_it_in_all_its_rounds():
    ledger = UserLedger(None, 8.0, DELTA)
    plan = plan_of(8.0)
    server = ServerDPFTRL(MODEL, plan=plan, report_goal=2, ledger=ledger.task("one", plan))
    assert finished(server, ["Lear", "Kent"], updates) == [{}] * 6
    assert ledger.epsilon_of("Lear") == plan.epsilon(DELTA)


def test_members_that_the_plan_fixes_stay_members_without_training():
    ledger = UserLedger(None, 8.0, DELTA)
    plan = plan_of(8.0, participation=acc.FixedOrder.from_steps([[1, 2], [1, 3]]))
    ledger.task("other", plan_of(8.0)).charge([2])
    server = PrivateRounds(MODEL, plan=plan, report_goal=2, ledger=ledger.task("order", plan))
    now = server.begin_round([1, 2])
    assert now.cohort == (1,) and now.absent == 1 and now.members.tolist() == [1, 2]
    assert now.add(1, [np.ones(3)]) is None and now.add(2, [np.ones(3)]) is not None
    server.end_round()
    assert server.begin_round([1, 3]).cohort == (1, 3)


def released(extreme):
    """Return all that leaves two tasks in which one user's updates may be extreme."""
    ledger = UserLedger(None, 8.0, DELTA, key=USERS_KEY)
    plan = plan_of(ledger.epsilon_per_task(2))
    models, away = [], []
    for i, label in enumerate(("one", "two", "three")):
        server = ServerDPFTRL(
            MODEL, plan=plan, report_goal=2, key=bytes([i]) * 32, ledger=ledger.task(label, plan)
        )

        def update(client, step):
            return [np.full(3, extreme)] if client == "Lear" else updates(client, step)

        clients = ["Lear", "Kent"] if label != "two" else ["Lear", "Edgar"]
        away.append(finished(server, clients, update))
        models.append(server.parameters[0])
    spent = [ledger.epsilon_of(name) for name in ("Lear", "Kent", "Edgar")]
    return np.array(models), away, spent, ledger.guarantee, repr(ledger)


@pytest.mark.parametrize("extreme", [1e300, -3.0, math.nan, math.inf])
def test_neighbours_differ_by_their_clipped_updates_alone(extreme):
    models, *facts = released(extreme)
    zero, *others = released(0.0)
    assert facts == others  # who is turned away, totals, texts
    assert np.abs(models - zero).max() <= 6 * 1.0 / 2 + 1e-9  # six rounds, clip norm 1, goal 2
    assert np.array_equal(models[2], zero[2])  # Lear's budget was spent before
    # An update that is not finite leaves an empty slot.
    assert np.array_equal(models[0], zero[0]) == (not math.isfinite(extreme))


def test_the_ledger_and_the_run_must_fit():
    ledger = UserLedger(None, 8.0, DELTA)
    plan, other = plan_of(4.0), plan_of(3.9)
    task = ledger.task("one", plan)
    assert ledger.task("one", plan).guarantee == task.guarantee
    with pytest.raises(ValueError, match="'one' must have the guarantee that it was declared"):
        ledger.task("one", other)
    with pytest.raises(ValueError, match="'one' must have the guarantee that it was declared"):
        PrivateRounds(MODEL, plan=other, report_goal=2, ledger=task)
    with pytest.raises(TypeError, match=r"as ledger.task\(label, plan\) returns, got UserLedger"):
        PrivateRounds(MODEL, plan=plan, report_goal=2, ledger=ledger)
    with pytest.raises(ValueError, match="with spare recoveries that of its RunAccount"):
        PrivateRounds(MODEL, plan=plan, report_goal=2, ledger=task, spare_recoveries=1)
    spare = ledger.task("spare", RunAccount(plan, 1))
    PrivateRounds(MODEL, plan=plan, report_goal=2, ledger=spare, spare_recoveries=1)
    PrivateRounds(MODEL, plan=plan, report_goal=2, ledger=task)
    with pytest.raises(ValueError, match="'one' belongs to another run"):
        PrivateRounds(MODEL, plan=plan, report_goal=2, ledger=task)
    free = ledger.task("free", plan)
    for option in ({"noise_seed": 1}, {"allow_fork": True}, {"accept_epsilon": (9.0, DELTA)}):
        with pytest.raises(ValueError, match="a ledger does not support noise_seed"):
            PrivateRounds(MODEL, plan=plan, report_goal=2, ledger=free, **option)
    with pytest.raises(ValueError, match="label must not be empty"):
        ledger.task("", plan)
    with pytest.raises(ValueError, match="nobody has taken part"):
        _ = ledger.guarantee
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(ledger)


def test_a_buffered_server_charges_a_client_when_its_update_arrives():
    ledger = UserLedger(None, 8.0, DELTA)
    plan = plan_of(5.0)
    task, other = ledger.task("one", plan), ledger.task("other", plan_of(8.0))
    server = BufferedServer(MODEL, plan=plan, buffer_size=2, ledger=task)
    other.charge(["Spent"])
    assert server.check_out("Spent").reason == SPENT
    assert server.eligible(["Spent", "Kent"]).tolist() == [False, True]
    token = server.check_out("Kent").token
    server.check_out("Lear")
    assert task.users == 0
    assert server.add("Spent", [np.ones(3)], token=token) == SPENT
    other.charge(["Lear"])  # meanwhile, in another task
    assert server.add("Lear", [np.ones(3)], token=token) == SPENT
    assert server.add("Kent", [np.full(3, math.nan)], token=token) is not None  # an empty slot
    assert task.users == 1 and ledger.epsilon_of("Kent") == plan.epsilon(DELTA)
    assert server.round.members.size == 1 and server.round.metrics()["accepted"] == 0


def test_flower_offers_and_asks_none_whose_budget_is_spent():
    cases = pytest.importorskip("tests.support.flower_cases")
    ledger = UserLedger(None, 8.0, DELTA)
    ledger.task("other", plan_of(8.0)).charge([2])
    task = ledger.task("flower", cases.every_round())
    grid = cases.LocalGrid(cases.client_app(), 5)
    strategy = cases.private(noise_seed=None, key=KEY, ledger=task)
    strategy.start(grid, cases.record(cases.model()))
    assert {partition for _, partition in grid.trained} == {0, 1, 3, 4}
    assert len(grid.trained) == 4 * cases.ROUNDS and task.users == 4


# ---- Resuming ----


def server_in(tmp_path, ledger, label="one"):
    task = None if ledger is None else ledger.task(label, plan_of(4.0))
    return ServerDPFTRL(
        MODEL, plan=plan_of(4.0), report_goal=2, folder=tmp_path / "run", key=KEY, ledger=task,
        checkpoint_every=2,
    )  # fmt: skip


def steps_of(server, number):
    for _ in range(number):
        now = server.begin_round([f"{server.rounds_done}", "Lear"])
        for client in now.cohort:
            now.add(client, updates(client, server.rounds_done))
        server.end_round()


def test_a_run_resumes_with_its_ledger_only(tmp_path):
    place, old = tmp_path / "ledger", tmp_path / "old"
    open_ledger = lambda: UserLedger(place, 8.0, DELTA)  # noqa: E731
    with server_in(tmp_path, open_ledger()) as server:
        steps_of(server, 1)
        shutil.copytree(place, old)
        steps_of(server, 2)
    assert (place / "users.log").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ValueError, match="they differ in ledger"):
        server_in(tmp_path, None)
    with pytest.raises(ValueError, match="they differ in ledger"):
        server_in(tmp_path, UserLedger(tmp_path / "new", 8.0, DELTA))
    with pytest.raises(ValueError, match="they differ in ledger"):
        server_in(tmp_path, open_ledger(), "two")
    kept = tmp_path / "kept"
    place.rename(kept)
    old.rename(place)
    with pytest.raises(ValueError, match="must have the 3 users that this run has asked, got 2"):
        server_in(tmp_path, open_ledger())
    shutil.rmtree(place)
    kept.rename(place)
    with server_in(tmp_path, open_ledger()) as server:
        assert server.rounds_done == 3
        size = (place / "users.log").stat().st_size
        steps_of(server, 3)
    assert (place / "users.log").stat().st_size > size
    assert all(open_ledger().epsilon_of(name) > 0 for name in ("Lear", *map(str, range(6))))


def test_users_of_a_task_are_written_once(tmp_path):
    ledger = UserLedger(tmp_path / "ledger", 8.0, DELTA)
    task = ledger.task("one", plan_of(4.0))
    task.charge(["Lear", "Kent", "Lear"])
    size = (tmp_path / "ledger" / "users.log").stat().st_size
    assert task.charge(["Kent", "Lear"]).all() and task.users == 2
    assert (tmp_path / "ledger" / "users.log").stat().st_size == size
    again = UserLedger(tmp_path / "ledger", 8.0, DELTA).task("one", plan_of(4.0))
    assert again.charge(["Lear"]).all() and again.users == 2
    assert (tmp_path / "ledger" / "users.log").stat().st_size == size


def test_an_older_copy_is_refused_by_the_object_that_saw_more(tmp_path):
    ledger = UserLedger(tmp_path / "ledger", 8.0, DELTA)
    task = ledger.task("one", plan_of(4.0))
    task.charge(["Lear"])
    path = tmp_path / "ledger" / "users.log"
    before = path.read_bytes()
    task.charge(["Kent"])
    path.write_bytes(before)
    with pytest.raises(ValueError, match="an older copy has taken its place"):
        task.eligible(["Kent"])
    path.unlink()
    with pytest.raises(FileNotFoundError, match="the file of a ledger, is missing"):
        task.eligible(["Kent"])


def test_every_flipped_byte_is_found_and_a_torn_end_is_cut_off(tmp_path):
    ledger = UserLedger(tmp_path / "ledger", 8.0, DELTA)
    task = ledger.task("one", plan_of(4.0))
    ends = []
    path = tmp_path / "ledger" / "users.log"
    for i in range(3):
        ends.append(path.stat().st_size)
        task.charge([f"{i}"])
    whole = path.read_bytes()
    ends.append(len(whole))
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at % 8)
        path.write_bytes(damaged)
        with pytest.raises(ValueError):
            _ = UserLedger(tmp_path / "ledger", 8.0, DELTA).tasks
    for start, end in pairwise(ends):
        for cut in range(start, end):
            path.write_bytes(whole[:cut] + (bytes(9) if cut == start else b""))
            again = UserLedger(tmp_path / "ledger", 8.0, DELTA).task("one", plan_of(4.0))
            assert again.users == ends.index(start)
        again.charge(["Edgar"])  # in place of the torn block
        assert UserLedger(tmp_path / "ledger", 8.0, DELTA).epsilon_of("Edgar") > 0


def interrupted(call, line):
    """Call, with Ctrl-C at the line-th line of the ledger's modules; say if it came.

    Not between taking and releasing the system's lock, which the process would then hold.
    """
    left = line

    def trace(frame, event, _):
        nonlocal left
        code = frame.f_code
        if "user_ledger" not in code.co_filename or code.co_name == "_locked":
            return None
        left -= event == "line"
        if left == 0 and event == "line":
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("folder", [True, False])
def test_an_interrupt_at_any_line_forgets_nobody(tmp_path, folder):
    """Ctrl-C in a call that reads another object's users and enters its own."""
    plan, line, stopped = plan_of(5.0), 0, True  # two tasks fit, three do not
    while stopped:
        line += 1
        path = tmp_path / f"{line}" if folder else None
        ledger = UserLedger(path, 8.0, DELTA)
        one, two, three = (ledger.task(label, plan) for label in ("one", "two", "three"))
        other = UserLedger(path, 8.0, DELTA) if folder else ledger
        for label in ("one", "two"):
            other.task(label, plan).charge(["Lear"])
        stopped = interrupted(lambda task=three: task.charge(["Kent"]), line)
        try:
            assert one.charge(["Kent", "Lear"]).all() and two.charge(["Lear"]).all()
        except RuntimeError as error:
            assert stopped and "interrupted half-way" in str(error)
        else:
            assert not three.eligible(["Lear"]).any()
            again = UserLedger(path, 8.0, DELTA) if folder else ledger
            for name in ("Kent", "Lear"):
                assert ledger.epsilon_of(name) == again.epsilon_of(name) > 0
    assert line > 20


def test_a_file_that_is_mended_is_read_from_the_start_of_the_damage(tmp_path):
    ledger, other = (UserLedger(tmp_path / "ledger", 8.0, DELTA) for _ in range(2))
    task = ledger.task("one", plan_of(8.0))
    path = tmp_path / "ledger" / "users.log"
    for name in ("Lear", "Kent"):
        other.task("one", plan_of(8.0)).charge([name])
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ValueError, match="is damaged"):
        task.eligible(["Lear"])
    path.write_bytes(whole)
    assert task.users == 2 and ledger.epsilon_of("Lear") > 0


def test_a_torn_block_that_is_longer_than_the_next_one_leaves_nothing(tmp_path):
    ledger = UserLedger(tmp_path / "ledger", 8.0, DELTA)
    path = tmp_path / "ledger" / "users.log"
    ledger.task("one", plan_of(4.0)).charge(range(1_000))
    path.write_bytes(path.read_bytes()[:-1])
    again = UserLedger(tmp_path / "ledger", 8.0, DELTA).task("one", plan_of(4.0))
    assert again.users == 0 and again.charge(["Lear"]).all()
    assert UserLedger(tmp_path / "ledger", 8.0, DELTA).task("one", plan_of(4.0)).users == 1


def test_a_folder_of_another_budget_or_key_is_refused(tmp_path):
    UserLedger(tmp_path / "own", 8.0, DELTA)
    UserLedger(tmp_path / "given", 8.0, DELTA, key=USERS_KEY)
    assert USERS_KEY.hex().encode() not in (tmp_path / "given" / "users.log").read_bytes()
    for changed, message in (
        ({"epsilon": 9.0}, r"epsilon must be that of .*, 8.0, got 9.0"),
        ({"delta": 1e-5}, "delta must be that of"),
        ({"neighbours": "replace-one"}, "neighbours must be that of"),
        ({"key": USERS_KEY}, "which keeps its own, got one"),
    ):
        with pytest.raises(ValueError, match=message):
            UserLedger(tmp_path / "own", **{"epsilon": 8.0, "delta": DELTA, **changed})
    with pytest.raises(ValueError, match="which was made with one"):
        UserLedger(tmp_path / "given", 8.0, DELTA)
    with pytest.raises(ValueError, match=r"key must be that of .*, got another"):
        UserLedger(tmp_path / "given", 8.0, DELTA, key=KEY)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(ValueError, match="expected an empty folder or one of a ledger"):
        UserLedger(tmp_path / "other", 8.0, DELTA)
    (tmp_path / "own").chmod(0o755)
    with pytest.raises(PermissionError, match="mode 0700"):
        UserLedger(tmp_path / "own", 8.0, DELTA)


# ---- Processes ----


def in_child(work):
    """Run `work` in a forked process and return its exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(call, tmp_path, *, half):
    """Run a server whose process dies at this system call on the ledger's file, or before it."""
    calls = iter(range(10**9))

    def dying(real, writes):
        def function(handle, *arguments):
            if next(calls) == call:
                if writes and half:
                    os_write(handle, bytes(arguments[0])[: len(arguments[0]) // 2], arguments[1])
                os._exit(9)
            return real(handle, *arguments)

        return function

    os_write = os.pwrite

    def work():
        ledger = UserLedger(tmp_path / "ledger", 8.0, DELTA)
        module = __import__("dpftrl_fast.federated.user_ledger_file", fromlist=["os"])
        patched = type("System", (), {name: getattr(os, name) for name in dir(os)})
        patched.pwrite = staticmethod(dying(os.pwrite, True))
        patched.fsync = staticmethod(dying(os.fsync, False))
        patched.ftruncate = staticmethod(dying(os.ftruncate, False))
        module.os = patched
        run_to_the_end(tmp_path, ledger)

    return in_child(work)


def run_to_the_end(tmp_path, ledger):
    with server_in(tmp_path, ledger) as server:
        while server.rounds_done < 6:
            now = server.begin_round([f"{server.rounds_done}", "Lear", "Spent"])
            assert now.cohort == (f"{server.rounds_done}", "Lear")
            for client in now.cohort:
                now.add(client, updates(client, server.rounds_done))
            with (tmp_path / "released").open("a") as file:
                file.write("".join(f"{client}\n" for client in now.cohort))
                file.flush()
            server.end_round()
        (tmp_path / "model").write_bytes(server.parameters[0].tobytes())


@pytest.mark.parametrize("half", [False, True])
def test_a_kill_at_any_write_forgets_nobody(tmp_path, half):
    def fresh(folder):
        folder.mkdir()
        UserLedger(folder / "ledger", 8.0, DELTA).task("other", plan_of(8.0)).charge(["Spent"])
        return folder

    whole = fresh(tmp_path / "whole")
    assert in_child(lambda: run_to_the_end(whole, UserLedger(whole / "ledger", 8.0, DELTA))) == 0
    for call in range(40):
        folder = fresh(tmp_path / f"{call}")
        status = killed_at(call, folder, half=half)
        ledger = UserLedger(folder / "ledger", 8.0, DELTA)
        asked = (folder / "released").read_text().split() if (folder / "released").exists() else []
        assert all(ledger.epsilon_of(client) > 0 for client in asked)
        if status == 0:
            break
        assert status == 9
        assert in_child(lambda at=folder, own=ledger: run_to_the_end(at, own)) == 0
        ledger = UserLedger(folder / "ledger", 8.0, DELTA)
        assert (folder / "model").read_bytes() == (whole / "model").read_bytes()
        assert ledger.task("one", plan_of(4.0)).users == 7
    assert call > 20 and status == 0


def test_two_processes_share_a_ledger(tmp_path):
    place = tmp_path / "ledger"
    ledger = UserLedger(place, 8.0, DELTA)
    labels = ("one", "two", "three")

    def work(label):
        own = UserLedger(place, 8.0, DELTA)
        task = own.task(label, plan_of(7.0))
        for user in np.random.default_rng(labels.index(label)).permutation(150).tolist():
            task.charge([user])

    children = []
    for label in labels:
        if (child := os.fork()) == 0:
            status = 1
            try:
                work(label)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
    users = [ledger.task(label, plan_of(7.0)).users for label in labels]
    assert sum(users) == 150 and sorted(ledger.tasks) == sorted(labels)
    assert {round(ledger.epsilon_of(user), 3) for user in range(150)} == {7.0}


def test_a_full_disk_charges_nobody(tmp_path, monkeypatch):
    ledger = UserLedger(tmp_path / "ledger", 8.0, DELTA)
    task = ledger.task("one", plan_of(4.0))
    monkeypatch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(28, "No space")))
    with pytest.raises(OSError, match=r"No space.*users\.log"):
        task.charge(["Lear"])
    monkeypatch.undo()
    assert task.users == 0 and ledger.epsilon_of("Lear") == 0.0
    assert task.charge(["Lear"]).all()
    assert UserLedger(tmp_path / "ledger", 8.0, DELTA).epsilon_of("Lear") > 0
