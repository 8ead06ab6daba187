# SPDX-License-Identifier: Apache-2.0
"""With hooks, the gradient of the loss for one example must not depend on the others.

Without the trial every loss of `MIXES` trains in silence, and one example moves the sums of all.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_cases import accumulator, flat_sums, grads, one_by_one

from dpftrl_fast.torch import PerExampleLoss, make_private
from dpftrl_fast.torch.gradients.accumulate import Accumulator
from dpftrl_fast.torch.gradients.clipping import FlatClipping
from dpftrl_fast.torch.gradients.loss.trace import Traced
from dpftrl_fast.torch.gradients.rows import hook_gradients

ROWS, CLASSES, LENGTH = 8, 5, 3
Loss = Callable[[Any, Any], Tensor]


class Run(NamedTuple):
    loss: Tensor
    x: Tensor
    y: Tensor
    sums: Accumulator


def sequence() -> nn.Module:
    return nn.Sequential(nn.Linear(4, LENGTH * CLASSES), nn.Unflatten(1, (LENGTH, CLASSES)))


def data(ignored: bool = False, length: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (ROWS, length) if length else (ROWS,)
    x = torch.randn(ROWS, 4, generator=generator)
    y = torch.randint(0, CLASSES, shape, generator=generator)
    if ignored:
        y.view(ROWS, -1)[3, -1] = -100
    return x, y


def train(
    loss: Loss,
    model: nn.Module | None = None,
    batch: tuple[Tensor, Tensor] | None = None,
    *,
    reduction: str = "mean",
    trial: bool = True,
    clip_norm: float = 0.1,
) -> Run:
    """Take the sums of one batch, as a loop with the loader does."""
    if model is None:
        torch.manual_seed(0)
        model = nn.Linear(4, CLASSES)
    x, y = batch or data()
    sums = accumulator(model, FlatClipping(clip_norm), ROWS)
    hooks = hook_gradients(model, sums, loss_reduction=reduction)
    sums.begin(range(ROWS))
    sums.expect(ROWS)
    assert sums.handed_out is not None
    if trial:
        x, y = sums.handed_out((x.clone(), y.clone()))
    else:
        hooks.loss_trial.close()
    value = loss(hooks.model(x), y)
    value.backward()
    sums.finish()
    return Run(value, x, y, sums)


def each(o: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(o, y, reduction="none")


def masked_by_hand(o: Tensor, y: Tensor) -> Tensor:
    mask = y != -100
    return (each(o, y) * mask).sum() / mask.sum()


def masked_by_a_number(o: Tensor, y: Tensor) -> Tensor:
    mask = y != -100
    return (each(o, y) * mask).sum() / mask.sum().item()


def masked_by_index(o: Tensor, y: Tensor) -> Tensor:
    kept = (y != -100).nonzero()[:, 0]
    return F.cross_entropy(o[kept], y[kept])


def masked_by_length(o: Tensor, y: Tensor) -> Tensor:
    losses = each(o, y)[y != -100]
    return losses.sum() / len(losses)


def clip(o: Tensor, y: Tensor) -> Tensor:
    z = F.normalize(o)
    similar = z @ z.T / 0.5
    return (
        F.cross_entropy(similar, torch.arange(ROWS))
        + F.cross_entropy(similar.T, torch.arange(ROWS))
    ) / 2


def sup_con(o: Tensor, y: Tensor) -> Tensor:
    z = F.normalize(o, dim=1)
    same = (y[:, None] == y[None]).float() - torch.eye(len(y))
    logits = (z @ z.T / 0.5).log_softmax(1)
    return -((same * logits).sum(1) / same.sum(1).clamp(min=1)).mean()


def triplet(o: Tensor, y: Tensor) -> Tensor:
    return F.triplet_margin_loss(o, o.roll(1, 0), o.roll(3, 0))


def normalised(o: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy((o - o.mean(0)) / (o.std(0) + 1e-5), y)


def hard_examples(o: Tensor, y: Tensor) -> Tensor:
    return each(o, y).topk(4).values.mean()


def sampled(o: Tensor, y: Tensor) -> Tensor:
    """The weights are constants, their mean is of the batch."""
    w = 1.0 + (y == 2).float()
    return (each(o, y) * w).sum() / w.sum()


def in_place(o: Tensor, y: Tensor) -> Tensor:
    y[y == 2] = -100
    return F.cross_entropy(o, y)


#: losses that mix examples; True where the first batch has an ignored target
MIXES: dict[str, tuple[Loss, bool]] = {
    "ignored targets": (F.cross_entropy, True),
    "class weights": (lambda o, y: F.cross_entropy(o, y, torch.arange(1.0, CLASSES + 1)), False),
    "an ignored class": (lambda o, y: F.cross_entropy(o, y, ignore_index=3), False),
    "by hand": (masked_by_hand, True),
    "by hand, none ignored yet": (masked_by_hand, False),
    "a number": (masked_by_a_number, True),
    "a number, none ignored yet": (masked_by_a_number, False),
    "an index": (masked_by_index, True),
    "an index, none ignored yet": (masked_by_index, False),
    "a length": (masked_by_length, False),
    "CLIP": (clip, False),
    "SupCon": (sup_con, False),
    "triplets": (triplet, False),
    "normalised": (normalised, False),
    "hard examples": (hard_examples, False),
    "the largest": (lambda o, y: each(o, y).max(), False),
    "weights of examples": (sampled, False),
    "targets changed in place": (in_place, False),
    "added to one that does not": (
        lambda o, y: F.cross_entropy(o, y) + 0.1 * (o.mean(0) ** 2).sum(),
        False,
    ),
    "scaled": (lambda o, y: normalised(o, y) / 4, False),
}


@pytest.mark.parametrize("name", MIXES)
def test_a_loss_that_mixes_examples_is_refused(name: str) -> None:
    loss, ignored = MIXES[name]
    for reduction in ("mean", "sum"):
        with pytest.raises(ValueError, match=r"must treat each example apart.*PerExampleLoss"):
            train(loss, batch=data(ignored), reduction=reduction)


def teacher(o: Tensor, y: Tensor) -> Tensor:
    far = torch.randn(ROWS, CLASSES, generator=torch.Generator().manual_seed(5))
    return F.kl_div(F.log_softmax(o, 1), F.softmax(far, 1), reduction="batchmean")


def printed(o: Tensor, y: Tensor) -> Tensor:
    right = (o.argmax(1) == y).float().mean().item()
    loss = F.cross_entropy(o, y)
    assert f"{loss} {loss.item():.3f} {right}" and isinstance(loss, Tensor)
    assert float(loss.detach()) == loss.tolist()
    return loss / 4


def autocast(o: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.cross_entropy(o @ torch.eye(CLASSES), y)


KEEPS_APART: dict[str, tuple[Loss, str]] = {
    "mean": (F.cross_entropy, "mean"),
    "smoothing": (lambda o, y: F.cross_entropy(o, y, label_smoothing=0.1), "mean"),
    "equal values": (lambda o, y: F.mse_loss(o, torch.zeros_like(o)), "mean"),
    "mse": (lambda o, y: F.mse_loss(o, F.one_hot(y, CLASSES).float()), "mean"),
    "weights of positives": (
        lambda o, y: F.binary_cross_entropy_with_logits(
            o, F.one_hot(y, CLASSES).float(), pos_weight=torch.arange(1.0, CLASSES + 1)
        ),
        "mean",
    ),
    "scaled": (lambda o, y: F.cross_entropy(o, y) / 4, "mean"),
    "a sum over a length": (lambda o, y: each(o, y).sum() / len(o), "mean"),
    "a sum over a number": (lambda o, y: each(o, y).sum() / ROWS, "mean"),
    "sum": (lambda o, y: F.cross_entropy(o, y, reduction="sum"), "sum"),
    "weighted sum": (
        lambda o, y: F.cross_entropy(o, y, torch.arange(1.0, CLASSES + 1), reduction="sum"),
        "sum",
    ),
    "two": (lambda o, y: F.cross_entropy(o, y) + 0.1 * o.square().mean(), "mean"),
    "a teacher": (teacher, "mean"),
    "printed": (printed, "mean"),
    "autocast": (autocast, "mean"),
    "noise": (lambda o, y: F.cross_entropy(F.dropout(o + torch.rand_like(o), 0.5), y), "mean"),
    "row by row": (
        lambda o, y: (
            sum(F.cross_entropy(a[None], b[None]) for a, b in zip(o, y, strict=True)) / len(y)
        ),
        "mean",
    ),
    "transposed": (lambda o, y: F.cross_entropy(o.T.contiguous().T, y), "mean"),
}


@pytest.mark.parametrize("name", KEEPS_APART)
def test_other_losses_are_as_without_a_trial(name: str) -> None:
    loss, reduction = KEEPS_APART[name]
    sums = []
    for trial in (True, False):
        torch.manual_seed(0)
        model = nn.Linear(4, CLASSES)
        torch.manual_seed(7)
        run = train(loss, model, reduction=reduction, trial=trial)
        sums.append(grads(model))
        assert type(run.loss) is type(run.x) is type(run.y) is Tensor  # plain again
        assert not vars(run.x) and torch.rand(1).shape == (1,)
        sums[-1].append(torch.rand(4).double())  # random numbers go on as without it
    for a, b in zip(*sums, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", KEEPS_APART)
def test_one_example_moves_the_sums_by_a_clip_norm(name: str) -> None:
    """The neighbour test: with row 3 replaced, in its input and its target."""
    if name == "noise":
        pytest.skip("its draws differ")
    loss, reduction = KEEPS_APART[name]
    x, y = data()
    other_x, other_y = x.clone(), y.clone()
    other_x[3], other_y[3] = -9.0 * x[3], (y[3] + 2) % CLASSES
    sums = []
    for batch in ((x, y), (other_x, other_y)):
        torch.manual_seed(0)
        model = nn.Linear(4, CLASSES)
        train(loss, model, batch, reduction=reduction)
        sums.append(torch.cat([g.flatten() for g in grads(model)]))
    assert float((sums[0] - sums[1]).norm()) <= 2 * 0.1  # one is taken away, another one added


@pytest.mark.parametrize("name", ["ignored targets", "class weights"])
def test_following_the_remedy_works(name: str) -> None:
    loss, ignored = MIXES[name]
    weight = torch.arange(1.0, CLASSES + 1) if name == "class weights" else None
    summed = nn.CrossEntropyLoss(weight, reduction="sum")
    apart = PerExampleLoss(nn.CrossEntropyLoss(weight))
    with pytest.raises(ValueError, match="reduction='sum' in the loss and loss_reduction='sum'"):
        train(loss, batch=data(ignored))
    train(summed, batch=data(ignored), reduction="sum")
    train(apart, batch=data(ignored))
    train(PerExampleLoss(loss, "sum"), batch=data(ignored), reduction="sum")


@pytest.mark.parametrize(("declared", "other"), [("mean", "sum"), ("sum", "mean")])
def test_another_reduction_than_declared_is_refused(declared: str, other: str) -> None:
    def loss(o: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(o, y, reduction=other)

    with pytest.raises(ValueError, match=f"loss_reduction must be '{other}'.*, got '{declared}'"):
        train(loss, reduction=declared)
    train(loss, reduction=other)


def flattened(o: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(o.view(-1, CLASSES), y.view(-1))


def by_position(o: Tensor, y: Tensor) -> Tensor:
    n, length, classes = o.shape
    return F.cross_entropy(o.reshape(n * length, classes), y.reshape(n * length), reduction="sum")


@pytest.mark.parametrize("ignored", [True, False])
def test_tokens_that_may_be_ignored(ignored: bool) -> None:
    """A mean over tokens is refused before a batch has a padded one."""
    with pytest.raises(ValueError, match="must treat each example apart"):
        train(flattened, sequence(), data(ignored, LENGTH))
    train(by_position, sequence(), data(ignored, LENGTH), reduction="sum")
    criterion = PerExampleLoss(nn.CrossEntropyLoss())
    train(lambda o, y: criterion(o.transpose(1, 2), y), sequence(), data(ignored, LENGTH))
    train(PerExampleLoss(flattened), sequence(), data(ignored, LENGTH))


class Outputs(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear, self.kind = nn.Linear(4, CLASSES), kind

    def forward(self, x: Tensor) -> Any:
        y = self.linear(x)
        if self.kind == "tuple":
            return y, 2 * y
        return {"logits": y, "twice": [2 * y], "rows": len(x)}


@pytest.mark.parametrize("kind", ["tuple", "dict"])
def test_models_with_several_outputs(kind: str) -> None:
    def first(o: Any) -> Tensor:
        return o[0] if kind == "tuple" else o["logits"]  # type: ignore[no-any-return]

    def both(o: Any) -> Tensor:
        return first(o) + (o[1] if kind == "tuple" else o["twice"][0])

    for part in (first, both):
        train(lambda o, y, part=part: F.cross_entropy(part(o), y), Outputs(kind))
        with pytest.raises(ValueError, match="must treat each example apart"):
            train(lambda o, y, part=part: normalised(part(o), y), Outputs(kind))


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square().sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient * ctx.saved_tensors[0]  # type: ignore[no-any-return]


def numpy_mask(o: Tensor, y: Tensor) -> Tensor:
    count = float((y != -100).sum()) + 1e-3
    return (each(o, y) * (y != -100)).sum() / count


@pytest.mark.parametrize(
    ("loss", "words"),
    [(lambda o, y: Square.apply(o), "a custom autograd function"), (numpy_mask, "number was read")],
)
def test_a_loss_that_cannot_be_tried_is_warned_of(loss: Loss, words: str) -> None:
    with pytest.warns(UserWarning, match=f"the loss could not be tried.*{words}"):
        train(loss, reduction="sum")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler
def test_a_compiled_loss_trains_and_is_warned_of() -> None:
    loss = torch.compile(F.cross_entropy, backend="eager")
    with pytest.warns(UserWarning, match="could not be tried.*compiled or scripted code"):
        train(loss)


def test_a_mixing_loss_moves_the_sums_by_more_than_a_clip_norm() -> None:
    """Why it is refused: without the trial one target of a heavy class moves all gradients."""
    x, y = 1.0 + 0.1 * data()[0], torch.zeros(ROWS, dtype=torch.long)  # all pull one way
    other = y.clone()
    other[3] = CLASSES - 1
    weight = torch.tensor([1.0, 1.0, 1.0, 1.0, 1e5])
    sums = []
    for targets in (y, other):
        torch.manual_seed(0)
        model = nn.Linear(4, CLASSES)
        train(lambda o, y: F.cross_entropy(o, y, weight), model, (x, targets), trial=False)
        sums.append(torch.cat([g.flatten() for g in grads(model)]))
    assert float((sums[0] - sums[1]).norm()) > 3 * 0.1  # two are what one example may


def test_torch_autograd_backward_is_tried_too() -> None:
    class Called:
        def __init__(self, loss: Tensor) -> None:
            self.loss = loss

        def backward(self) -> None:
            torch.autograd.backward(self.loss)

    train(lambda o, y: Called(F.cross_entropy(o, y)))  # type: ignore[arg-type,return-value]
    with pytest.raises(ValueError, match="must treat each example apart"):
        train(lambda o, y: Called(normalised(o, y)))  # type: ignore[arg-type,return-value]


class Labelled(nn.Module):
    """A model as those of transformers are: the loss is one of its outputs."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(CLASSES, 4), nn.Linear(4, CLASSES)
        self.reduction = reduction

    def forward(self, ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.words(ids))
        flat = logits.float().view(-1, CLASSES), labels.view(-1)
        return {"loss": F.cross_entropy(*flat, reduction=self.reduction), "logits": logits}


@pytest.mark.parametrize("ignored", [True, False])
def test_a_loss_inside_of_the_model(ignored: bool) -> None:
    _, labels = data(ignored, LENGTH)
    ids = labels.clamp(min=0)

    def step(model: nn.Module, loss: Loss, reduction: str = "mean") -> None:
        sums = accumulator(model, FlatClipping(0.1), ROWS)
        hooks = hook_gradients(model, sums, loss_reduction=reduction)
        sums.begin(range(ROWS))
        sums.expect(ROWS)
        assert sums.handed_out is not None
        batch = sums.handed_out({"ids": ids.clone(), "labels": labels.clone()})
        loss(hooks.model(**batch), batch["labels"]).backward()
        sums.finish()

    words = "must treat each example apart"
    with pytest.raises(ValueError, match=words):
        step(Labelled(), lambda o, y: o["loss"])
    if not ignored:
        words = "the loss that the model returns must.*the argument 'labels' of others, if they are"
    with pytest.raises(ValueError, match=words):
        step(Labelled(), lambda o, y: o["loss"] / 2 + o["logits"].mean())
    step(Labelled("sum"), lambda o, y: o["loss"], "sum")
    apart = PerExampleLoss(nn.CrossEntropyLoss())
    step(Labelled(), lambda o, y: apart(o["logits"].transpose(1, 2), y))


def test_values_decide_nothing_after_a_release() -> None:
    """When a run resumes, rows are made up: of a loss that looks at values nothing is said."""
    sums: list[Accumulator] = []

    def begun(model: nn.Module) -> nn.Module:
        sums.append(accumulator(model, FlatClipping(0.1), ROWS, steps=3))
        for step in range(2):
            if step == 1:
                hooks = hook_gradients(model, sums[-1])
            sums[-1].begin(range(ROWS * step, ROWS * (step + 1)))
            sums[-1].expect(ROWS)
            if step == 0:
                sums[-1].add([torch.zeros(ROWS, *p.shape) for p in model.parameters()])
                sums[-1].finish()
                sums[-1].done()
        return hooks.model

    x, y = data()
    o = begun(nn.Linear(4, CLASSES))(x)
    with pytest.raises(ValueError, match="must treat each example apart"):
        normalised(o, y).backward()
    for ignored in (True, False):  # the same whatever is in the batch
        x, y = data(ignored)
        F.cross_entropy(begun(nn.Linear(4, CLASSES))(x), y).backward()


def test_the_loop_of_make_private_is_tried() -> None:
    x, y = data(True)
    both = torch.utils.data.TensorDataset(x, y)
    for criterion in (F.cross_entropy, PerExampleLoss(nn.CrossEntropyLoss())):
        model = nn.Linear(4, CLASSES)
        private = make_private(
            *(model, torch.optim.SGD(model.parameters(), lr=0.1)),
            torch.utils.data.DataLoader(both, batch_size=ROWS // 2),
            **{"noise_multiplier": 1.0, "delta": 1e-5, "epochs": 1, "clip_norm": 1.0},
            shuffle=False,
        )
        steps = iter(private.data_loader)
        _, (inputs, targets) = next(steps)
        assert type(inputs) is Traced
        loss = criterion(private.model(inputs), targets)
        if criterion is F.cross_entropy:
            with pytest.raises(ValueError, match="must treat each example apart"):
                loss.backward()
            continue
        loss.backward()
        private.optimizer.step()
        _, (inputs, _) = next(steps)
        assert type(inputs) is Tensor


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("length", [0, LENGTH])
def test_per_example_loss_is_the_mean_of_single_examples(weighted: bool, length: int) -> None:
    torch.manual_seed(3)
    weight = torch.rand(CLASSES).double() if weighted else None
    o = torch.randn(ROWS, CLASSES, *([length] if length else [])).double().requires_grad_()
    _, y = data(True, length)
    y[5] = -100  # an example without a target
    usual = nn.CrossEntropyLoss(weight, label_smoothing=0.1)
    single = [usual(o[i : i + 1], y[i : i + 1]) for i in range(ROWS)]
    expected = sum(x for x in single if not x.isnan()) / ROWS
    for criterion in (PerExampleLoss(usual), PerExampleLoss(lambda a, b: usual(a, b))):
        value = criterion(o, y)
        torch.testing.assert_close(value, expected)
        (gradient,) = torch.autograd.grad(value, o, retain_graph=True)
        assert bool(gradient.isfinite().all()) and not bool(gradient[5].any())


def test_per_example_loss_trains_as_one_example_at_a_time() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, CLASSES).double()
    x, y = data(True)
    criterion = PerExampleLoss(nn.CrossEntropyLoss(torch.arange(1.0, CLASSES + 1).double()))
    samples = one_by_one(model, criterion, x.double(), y, list(model.parameters()))
    train(criterion, model, (x.double(), y), clip_norm=0.5)
    for got, expected in zip(grads(model), flat_sums(samples, 0.5), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_per_example_loss_says_what_it_takes() -> None:
    with pytest.raises(TypeError, match="criterion must be callable, got int"):
        PerExampleLoss(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"mean of an example .*got 'sum'"):
        PerExampleLoss(nn.CrossEntropyLoss(reduction="sum"))
    with pytest.raises(ValueError, match="reduction must be"):
        PerExampleLoss(F.cross_entropy, "none")
    with pytest.raises(ValueError, match=r"same number of rows.* got \[3, 4\]"):
        PerExampleLoss(F.cross_entropy)(torch.ones(3, 2), torch.ones(4))


def test_no_warnings_for_the_usual_loop() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(printed)


def test_gathering_by_position_is_no_mixing() -> None:
    def gathered(o: Tensor, y: Tensor) -> Tensor:
        return -o.log_softmax(1)[torch.arange(len(y)), y].mean()

    train(gathered)
    x, y = data()
    weight = torch.rand(CLASSES)  # as many classes as examples
    rows = slice(0, CLASSES)
    model = nn.Linear(4, CLASSES)
    sums = accumulator(model, FlatClipping(0.1), CLASSES)
    hooks = hook_gradients(model, sums, loss_reduction="sum")
    sums.begin(range(CLASSES))
    sums.expect(CLASSES)
    F.cross_entropy(hooks.model(x[rows]), y[rows], weight, reduction="sum").backward()
    sums.finish()


def test_targets_from_elsewhere_count_as_the_batch() -> None:
    far = data(True)[1]
    with pytest.raises(ValueError, match="must treat each example apart"):
        train(lambda o, y: F.cross_entropy(o, far))
    with pytest.raises(ValueError, match="must treat each example apart"):
        train(lambda o, y: torch.autograd.grad(normalised(o, y), o)[0].sum())
