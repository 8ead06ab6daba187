# SPDX-License-Identifier: Apache-2.0
"""The image experiments: sums and steps by their definition, the grid, the rule of the rates."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from command_line import run, run_json  # noqa: E402

from dpftrl_fast import accounting as acc  # noqa: E402
from dpftrl_fast.experiments.climbing import climb  # noqa: E402
from dpftrl_fast.experiments.images import command as images  # noqa: E402
from dpftrl_fast.experiments.images import data as images_data  # noqa: E402
from dpftrl_fast.experiments.images import methods as images_methods  # noqa: E402
from dpftrl_fast.experiments.images.data import Images, load_digits  # noqa: E402
from dpftrl_fast.experiments.images.grid import all_methods, groups  # noqa: E402
from dpftrl_fast.experiments.images.methods import (  # noqa: E402
    Budget,
    Method,
    ftrl_plan,
    train,
)
from dpftrl_fast.experiments.images.network import ImageNetwork, clipped_sums  # noqa: E402
from dpftrl_fast.mechanisms import Tree  # noqa: E402

PNG = b"\x89PNG\r\n\x1a\n"
PARAMETERS = 26_010


def small_images(n=120, held_out=40, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.arange(n + held_out, dtype=np.uint8) % 10
    pixels = rng.integers(0, 256, (n + held_out, 784)).astype(np.uint8)
    pixels[np.arange(n + held_out), labels] = 255
    return Images.of(pixels[:n], labels[:n], pixels[n:], labels[n:])


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """More threads are slower for a network so small, and on a busy machine much slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ---- The network and its gradients ----


def test_the_network_has_the_parameters_of_the_paper():
    network = ImageNetwork(seed=1)
    assert sum(p.numel() for p in network.parameters()) == PARAMETERS
    again, other = ImageNetwork(seed=1), ImageNetwork(seed=2)
    assert all(map(torch.equal, network.parameters(), again.parameters()))
    assert not torch.equal(network.conv1.weight, other.conv1.weight)
    assert float(network.conv2.weight.detach().std()) == pytest.approx(1 / 16, rel=0.05)
    assert float(network.linear1.weight.detach().std()) == pytest.approx(
        math.sqrt(2 / 544), rel=0.05
    )


def test_tanh_after_the_maximum_is_tanh_before_it():
    network, x = ImageNetwork(seed=0), torch.rand(3, 1, 28, 28)
    pool = torch.nn.functional.max_pool2d
    y = pool(torch.tanh(network.conv1(x)), 2, 1)
    y = pool(torch.tanh(network.conv2(y)), 2, 1)
    y = network.linear2(torch.tanh(network.linear1(y.flatten(1))))
    torch.testing.assert_close(network(x), y)


def one_by_one(network, x, y):
    """The gradient of each example, flat, by a backward pass of its own."""
    rows = []
    for i in range(len(y)):
        loss = torch.nn.functional.cross_entropy(network(x[i : i + 1]), y[i : i + 1])
        found = torch.autograd.grad(loss, list(network.parameters()))
        rows.append(torch.cat([g.reshape(-1) for g in found]).double())
    return torch.stack(rows)


@pytest.mark.parametrize("clip_norm", [1e-3, 2.0, 1e3])
def test_sums_are_those_of_single_gradients_clipped(clip_norm):
    torch.manual_seed(0)
    network, x, y = ImageNetwork(seed=3), torch.randn(9, 1, 28, 28), torch.arange(9)
    rows = one_by_one(network, x, y)
    norms = rows.norm(dim=1, keepdim=True)
    if clip_norm == 2.0:
        clip_norm = float(norms.median())
    wanted = (rows * (clip_norm / norms).clamp(max=1)).sum(0)
    found = clipped_sums(network, x, y, clip_norm)
    assert [part.shape for part in found] == [p.shape for p in network.parameters()]
    flat = torch.cat([part.reshape(-1) for part in found]).double()
    assert float((flat - wanted).norm() / wanted.norm()) < 3e-6
    assert all(p.grad is None for p in network.parameters())
    # one more example changes the sum by no more than the clip norm
    less = clipped_sums(network, x[1:], y[1:], clip_norm)
    change = torch.cat([part.reshape(-1) for part in less]).double() - flat
    assert float(change.norm()) <= clip_norm * (1 + 1e-4)


def test_sums_are_those_of_opacus():
    grad_sample = pytest.importorskip("opacus.grad_sample")
    network, y = ImageNetwork(seed=4), torch.arange(6)
    x = torch.randn(6, 1, 28, 28, generator=torch.Generator().manual_seed(0)).requires_grad_()
    # its formula for convolutions is for inputs that are contiguous: the network in plain layers
    plain = torch.nn.Sequential(
        network.conv1, torch.nn.Tanh(), torch.nn.MaxPool2d(2, 1),
        network.conv2, torch.nn.Tanh(), torch.nn.MaxPool2d(2, 1),
        torch.nn.Flatten(), network.linear1, torch.nn.Tanh(), network.linear2,
    )  # fmt: skip
    wrapped = grad_sample.GradSampleModule(plain, loss_reduction="sum")
    torch.nn.functional.cross_entropy(wrapped(x), y, reduction="sum").backward()
    rows = torch.cat([p.grad_sample.reshape(6, -1) for p in network.parameters()], dim=1)
    factors = (1.0 / rows.norm(dim=1)).clamp(max=1)
    wrapped.remove_hooks()
    found = clipped_sums(network, x.detach(), y, 1.0)
    flat = torch.cat([part.reshape(-1) for part in found])
    torch.testing.assert_close(flat, factors @ rows, rtol=1e-5, atol=1e-6)


def test_no_examples_have_the_sum_zero():
    found = clipped_sums(
        ImageNetwork(0), torch.zeros(0, 1, 28, 28), torch.zeros(0, dtype=torch.int64), 1.0
    )
    assert sum(part.numel() for part in found) == PARAMETERS
    assert not any(bool(part.any()) for part in found)


# ---- The methods ----


def flat(network):
    return torch.cat([p.detach().reshape(-1) for p in network.parameters()])


def ends_of(method, budget, data, *, seed, rate=0.1, sigma=1.0):
    """The number of each epoch and the parameters after it."""
    ends = []
    train(
        method, budget, data, learning_rate=rate, seed=seed, sigma=sigma,
        each_epoch=lambda epoch, network: ends.append((epoch, flat(network))),
    )  # fmt: skip
    return ends


@pytest.mark.parametrize("kind", ["ftrl", "planned", "fixed", "amplified"])
def test_a_step_adds_the_noise_of_the_budget_and_divides_by_the_batch(kind):
    data, rate = small_images(), 0.5
    batch = len(data.y) if kind != "amplified" else 2 * len(data.y)
    budget, method = Budget(2.0, 1e-5, batch, 1), Method(kind, 0.9)
    sigma = 3.0
    if kind in ("ftrl", "planned"):
        sigma = ftrl_plan(method, budget, len(data.y)).noise_multiplier
    elif kind == "fixed":
        sigma = acc.noise_multiplier(2.0, 1e-5, 1)
    # of an amplified batch that is expected to be twice as large as the data, all are part
    ((epoch, end),) = ends_of(method, budget, data, seed=5, rate=rate, sigma=3.0)
    start = ImageNetwork(5)
    sums = torch.cat([s.reshape(-1) for s in clipped_sums(start, data.x, data.y, 1.0)])
    noise = (flat(start) - end) * batch / rate - sums
    assert epoch == 1
    assert float(noise.std()) == pytest.approx(sigma, rel=0.02)
    assert abs(float(noise.mean())) < 5 * sigma / math.sqrt(PARAMETERS)


@pytest.mark.parametrize("kind", ["ftrl", "fixed", "amplified"])
def test_noise_is_unrelated_to_the_first_weights(kind):
    data, start = small_images(), ImageNetwork(5)
    budget = Budget(0.1, 1e-5, len(data.y), 1)
    ((_, end),) = ends_of(Method(kind), budget, data, seed=5, sigma=1e4)
    weights = start.conv1.weight.detach().reshape(-1)
    change = (end - flat(start))[: weights.numel()]
    assert abs(float(np.corrcoef(weights, change)[0, 1])) < 5 / math.sqrt(weights.numel())


@pytest.mark.parametrize(("kind", "momentum"), [("fixed", 0.9), ("amplified", 0.0)])
def test_runs_of_dp_sgd_are_those_of_opacus(monkeypatch, kind, momentum):
    opacus = pytest.importorskip("opacus.optimizers.optimizer")
    grad_sample = pytest.importorskip("opacus.grad_sample")
    data, batch, epochs, rate, seed = small_images(n=70), 20, 2, 0.5, 3  # last batches are partial
    sigma = acc.noise_multiplier(8.0, 1e-5, epochs) if kind == "fixed" else 0.7
    drawn, randn = [], torch.randn

    def recorded(*arguments, **options):
        drawn.append(randn(*arguments, **options))
        return drawn[-1].clone()

    with monkeypatch.context() as patch:
        patch.setattr(torch, "randn", recorded)
        budget = Budget(8.0, 1e-5, batch, epochs)
        end = ends_of(Method(kind, momentum), budget, data, seed=seed, rate=rate, sigma=sigma)[-1][
            1
        ]

    network, noise = ImageNetwork(seed), iter(drawn)
    plain = torch.nn.Sequential(
        network.conv1, torch.nn.MaxPool2d(2, 1), torch.nn.Tanh(),
        network.conv2, torch.nn.MaxPool2d(2, 1), torch.nn.Tanh(),
        torch.nn.Flatten(), network.linear1, torch.nn.Tanh(), network.linear2,
    )  # fmt: skip
    monkeypatch.setattr(opacus, "_generate_noise", lambda std, *a, **b: std * next(noise))
    wrapped = grad_sample.GradSampleModule(plain, loss_reduction="sum")
    optimizer = opacus.DPOptimizer(
        torch.optim.SGD(plain.parameters(), rate, momentum=momentum),
        noise_multiplier=sigma, max_grad_norm=1.0, expected_batch_size=batch,
    )  # fmt: skip
    for ids in images_methods._batches(70, batch, epochs * 4, kind == "amplified", seed):
        x = data.x[ids].requires_grad_()
        torch.nn.functional.cross_entropy(wrapped(x), data.y[ids], reduction="sum").backward()
        optimizer.step()
        optimizer.zero_grad()
    assert next(noise, None) is None and epochs * 4 == 8
    torch.testing.assert_close(flat(network), end, rtol=0, atol=2e-5)


def test_runs_follow_from_their_seed():
    data, budget = small_images(), Budget(8.0, 1e-5, 50, 2)
    for method in (Method("ftrl", 0.9, 1, True), Method("planned", 0.9), Method("amplified")):
        ends = [ends_of(method, budget, data, seed=seed) for seed in (0, 0, 1)]
        assert all([epoch for epoch, _ in run] == [1, 2] for run in ends)
        last = [run[-1][1] for run in ends]
        assert torch.equal(last[0], last[1]) and not torch.equal(last[0], last[2])


def test_the_noise_of_amplified_methods_must_be_given():
    with pytest.raises(ValueError, match="sigma must be given for 'DP-SGD, amplified', got None"):
        train(
            Method("amplified"), Budget(1.0, 1e-5, 50, 1), small_images(), learning_rate=1.0, seed=0
        )


def test_fixed_batches_are_dealt_and_samples_have_the_expected_size():
    fixed = list(images_methods._batches(103, 20, 12, False, 0))
    for epoch in (fixed[:6], fixed[6:]):
        assert np.array_equal(np.sort(np.concatenate(epoch)), np.arange(103))
    assert not np.array_equal(fixed[0], fixed[6])
    sizes = [len(ids) for ids in images_methods._batches(1000, 100, 400, True, 0)]
    assert np.mean(sizes) == pytest.approx(100, abs=5 * math.sqrt(90 / 400))
    assert np.var(sizes) == pytest.approx(90, rel=0.4)


@pytest.mark.parametrize("method", [m for m in all_methods(20) if m.kind == "ftrl" and m.momentum])
def test_plans_keep_the_budget_and_restart_at_epochs(method):
    plan = ftrl_plan(method, Budget(8.0, 1e-5, 1000, 20), 60_000)
    assert 7.99 < plan.epsilon(1e-5) <= 8.0 and plan.steps == 1200
    every = None if method.restart is None else 60 * method.restart
    assert plan.mechanism == Tree(method.variant, every, complete=method.complete)


def test_the_planners_mechanism_is_for_the_momentum_and_keeps_one_order():
    budget, method = Budget(8.0, 1e-5, 250, 5), Method("planned", 0.9)
    plan = ftrl_plan(method, budget, 60_000)
    assert 7.99 < plan.epsilon(1e-5) <= 8.0 and plan.steps == 1200
    assert plan.mechanism.vectors <= 3
    error = acc.mechanism_error(plan.mechanism, plan.participation, acc.Workload(momentum=0.9))
    tree = ftrl_plan(Method("ftrl", 0.9, 1, True), budget, 60_000)
    beside = acc.mechanism_error(tree.mechanism, tree.participation, acc.Workload(momentum=0.9))
    assert plan.noise_multiplier * error.rms < 0.85 * tree.noise_multiplier * beside.rms
    order = images_methods.EpochOrder(60_000, 250, plan, 0)
    assert np.array_equal(order.ids(1), order.ids(241))
    assert method.to_dict() == {"method": "planned", "momentum": 0.9}


# ---- The grid and the rates ----


def test_the_full_grid_has_all_methods_and_the_reduced_one_is_part_of_it():
    for data in ("fashion-mnist", "digits"):
        full = {cell for group in groups(data, "full") for cell in group.cells}
        assert len(full) == (18 + 26) * 6
        assert {cell.budget.epsilon for cell in full} == {1.0, 2.0, 4.0, 8.0, 14.0, 20.0}
        reduced = [cell for group in groups(data, "reduced") for cell in group.cells]
        assert len(set(reduced)) == len(reduced) and full > set(reduced)
    names = [method.name for method in all_methods(20)]
    assert len(set(names)) == len(names) == 26


ENDS = {"lowest": -12, "highest": 6}


def test_rates_are_climbed_until_both_neighbours_are_worse():
    asked = []

    def score(pairs):
        asked.extend(pairs)
        return [-((k - (-9, 2)[place]) ** 2) for place, k in pairs]

    assert climb(score, [-4, 1], **ENDS) == [-9, 2]
    assert len(set(asked)) == len(asked)
    assert sorted(k for place, k in asked if place == 1) == [0, 1, 2, 3]
    asked.clear()
    assert climb(score, [-4, 1], **ENDS, rounds=1) == [-5, 2] and len(asked) == 6
    assert climb(lambda pairs: [0.5 for _ in pairs], [-4], **ENDS) == [
        -12
    ]  # all alike: the smallest
    assert climb(lambda pairs: [float(k) for _, k in pairs], [-4], **ENDS) == [
        6
    ]  # the last of the range


# ---- The whole ----


@pytest.fixture
def small(monkeypatch):
    """Small images, and a noise multiplier that is found at once."""
    from dpftrl_fast.experiments.images import tuning as images_tuning

    monkeypatch.setattr(images_tuning, "dpsgd_noise_multiplier", lambda *a, **b: 1.0)
    loaders = {"images-digits": lambda data: small_images(n=52, held_out=10)}
    monkeypatch.setattr(images, "IMAGES", loaders)


def test_the_command_writes_results_tables_and_figures_and_resumes(small, tmp_path):
    threads, out = torch.get_num_threads(), tmp_path / "o"
    arguments = ("experiment", "images", "--quick", "--out", out)
    first = run_json(*arguments)["experiments"]["images-digits"]
    # six methods, two epsilons: three rates, two fits; and the noise of two, twice
    assert first["done"] == 12 * (3 + 2) + 2 * 2 and len(first["rows"]) == 12
    assert {path.name for path in out.iterdir()} == {
        "results.jsonl", "images-digits.md", *first["figures"]
    }  # fmt: skip
    for figure in first["figures"]:
        assert (out / figure).read_bytes()[:8] == PNG
    # killed in the middle of writing a row of the fits
    path, report = out / "results.jsonl", out / "images-digits.md"
    content, text = path.read_bytes(), report.read_text()
    lines = content.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:40]) + lines[40][:100])
    report.unlink()
    again = run_json(*arguments)["experiments"]["images-digits"]
    assert again["done"] == len(lines) - 40 and again["rows"] == first["rows"]
    assert path.read_bytes() == content and report.read_text() == text
    shown = run(*arguments)
    assert "DP-FTRLM" in shown.stdout and "0 new fits" in shown.stdout
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--full", "--quick"), "--full and --quick exclude each other"),
        (("--only", "mnist"), "experiment must be one of 'images-digits', got 'mnist'"),
        (("--threads", "0"), "threads must be an integer >= 1, got 0"),
    ],
)
def test_bad_arguments_are_refused(small, tmp_path, arguments, words):
    result = run("experiment", "images", *arguments, "--out", tmp_path, code=2)
    assert words in result.stderr


def test_digits_are_dealt_by_a_published_order(tmp_path):
    lines = [",".join(["7"] * 784 + [str(i // 5)]) for i in range(50)]
    import gzip

    (tmp_path / "mnist_5k.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    found = load_digits(tmp_path)
    assert found.x.shape == (40, 1, 28, 28) and found.test_x.shape == (10, 1, 28, 28)
    assert float(found.x[0, 0, 0, 0]) == pytest.approx(7 / 127.5 - 1)
    order = images_data.hashed_order("mnist_5k", 50)
    assert torch.cat([found.y, found.test_y]).tolist() == [int(i) // 5 for i in order]
    with pytest.raises(ValueError, match=r"rows of 784 pixels, got shape \(1, 783\)"):
        Images.of(*2 * (np.zeros((1, 783), np.uint8), np.zeros(1, np.uint8)))
    kept = found.validation(8)
    assert len(kept.y) == 32 and torch.equal(kept.test_y, found.y[32:])
