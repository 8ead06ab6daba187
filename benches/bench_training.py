# SPDX-License-Identifier: Apache-2.0
"""A whole training step in PyTorch: plain SGD, Opacus (hooks, ghost clipping), and `make_private`.

`python benches/bench_training.py` starts one process for each model and way, in turn, and prints
the medians of docs/results/benchmarks.md: CPU time of all that comes before the first step (imports
too, other than torch's), of the first step and of a later one, and the peak memory of the process,
imports included. Everything runs in one thread. Models: a transformer of 10.0 million parameters
(batches of 32 sequences of 64), and the paper's network for images (batches of 250).

"clipping" is the norms, factors and weighted sum alone, on the image network's gradients of a
batch: ours in float64 against Opacus's in float32.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(name, None)
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import json
import platform
import resource
import statistics
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import DataLoader, TensorDataset

ROUNDS, STEPS = 3, 8
# Steps after 0, 1, 2 and 4 steps try the model again; the others are typical.
TYPICAL = (3, 5, 6, 7)
WAYS = ("sgd", "opacus", "ghost", "hooks", "vmap")


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h, rows = self.before(x), len(x)

        def split(t: Tensor) -> Tensor:
            return t.reshape(rows, -1, self.heads, t.shape[-1] // self.heads).transpose(1, 2)

        mixed = scaled_dot_product_attention(*(split(f(h)) for f in (self.q, self.k, self.v)))
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    def __init__(self, words: int, width: int, length: int, blocks: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(blocks)))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[1]).repeat(len(x), 1)
        return self.head(self.blocks(self.words(x) + self.places(at)).mean(1))  # type: ignore[no-any-return]


def images() -> nn.Module:
    """Return the paper's network, for 28 x 28 images."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


#: name -> (network, batch, inputs of so many rows)
Model = tuple[Callable[[], nn.Module], int, Callable[[int], Tensor]]
MODELS: dict[str, Model] = {
    "transformer": (
        lambda: Transformer(8000, 256, 64, 10),
        32,
        lambda rows: torch.randint(0, 8000, (rows, 64)),
    ),
    "images": (images, 250, lambda rows: torch.randn(rows, 1, 28, 28)),
}
SMALL: Model = (
    lambda: Transformer(20, 8, 4, 1), 4, lambda rows: torch.randint(0, 20, (rows, 4))
)  # fmt: skip


def steps_of(way: str, model: Model, steps: int) -> Iterator[nn.Module]:
    """Yield the network when it can be trained, and again after each training step."""
    make, batch, inputs = model
    torch.manual_seed(0)
    network = make()
    x, y = inputs(steps * batch), torch.randint(0, 10, (steps * batch,))
    optimizer: Any = torch.optim.SGD(network.parameters(), lr=0.01)
    if way in ("hooks", "vmap"):
        yield from _ours(way, network, optimizer, TensorDataset(x, y), batch)
        return
    wrapped, loss_of = network, cross_entropy
    if way != "sgd":
        wrapped, optimizer, loss_of = _opacus(way, network, optimizer, batch)
    yield network
    for start in range(0, steps * batch, batch):
        optimizer.zero_grad()
        loss_of(wrapped(x[start : start + batch]), y[start : start + batch]).backward()
        optimizer.step()
        yield network


def _ours(
    way: str, network: nn.Module, optimizer: Any, data: TensorDataset, batch: int
) -> Iterator[nn.Module]:
    from dpftrl_fast.torch import make_private

    made = make_private(
        network,
        optimizer,
        DataLoader(data, batch_size=batch),
        noise_multiplier=3.0,
        delta=1e-5,
        epochs=1,
        clip_norm=1.0,
        grad_sample_mode=way,  # type: ignore[arg-type]
        threads=1,
    )
    yield network
    for _, (x, y) in made.data_loader:
        cross_entropy(made.model(x), y).backward()
        made.optimizer.step()
        yield network


def _opacus(way: str, network: nn.Module, optimizer: Any, batch: int) -> tuple[Any, Any, Any]:
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    options = {"noise_multiplier": 3.0, "max_grad_norm": 1.0, "expected_batch_size": batch}
    if way == "opacus":
        return GradSampleModule(network), DPOptimizer(optimizer, **options), cross_entropy
    ghost = GradSampleModuleFastGradientClipping(network, max_grad_norm=1.0)
    private = DPOptimizerFastGradientClipping(optimizer, **options)
    return ghost, private, DPLossFastGradientClipping(ghost, private, nn.CrossEntropyLoss())


def measured(way: str, model: Model) -> dict[str, float]:
    """Return the CPU time of parts of a run, and the peak memory."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    times, start = [], time.process_time()
    for _ in steps_of(way, model, STEPS):
        times.append(time.process_time() - start)
        start = time.process_time()
    setup, *steps = times
    return {
        "setup": setup,
        "first": steps[0],
        "later": statistics.median(steps[i] for i in TYPICAL),
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def clipping() -> dict[str, float]:
    """Return the CPU time of clipping one batch's gradients, ours in float64 and Opacus's."""
    from dpftrl_fast.torch.gradients.clipped_sums import add_clipped_, row_norms
    from dpftrl_fast.torch.gradients.clipping import FlatClipping

    torch.set_num_threads(1)
    make, batch, _ = MODELS["images"]
    samples = [torch.randn(batch, *p.shape) for p in make().parameters()]

    def ours() -> list[Tensor]:
        norms = torch.stack([row_norms(s) for s in samples])
        factors = FlatClipping(1.0).factors(norms, 1.0)
        totals = [torch.zeros(s.shape[1:], dtype=torch.float64) for s in samples]
        for total, sample, factor in zip(totals, samples, factors, strict=True):
            add_clipped_(total, sample, factor)
        return totals

    def opacus() -> list[Tensor]:  # as its DPOptimizer.clip_and_accumulate does
        norms = torch.stack([s.reshape(batch, -1).norm(2, dim=-1) for s in samples], 1).norm(2, 1)
        factor = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        return [torch.einsum("i,i...", factor, s) for s in samples]

    for a, b in zip(ours(), opacus(), strict=True):
        torch.testing.assert_close(a.float(), b, rtol=1e-3, atol=1e-4)
    times: dict[str, list[float]] = {"ours": [], "opacus": []}
    for _ in range(40):
        for name, call in (("ours", ours), ("opacus", opacus)):
            start = time.process_time()
            call()
            times[name].append(time.process_time() - start)
    return {name: statistics.median(found) for name, found in times.items()}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("way", WAYS)
def test_every_way_trains(way: str) -> None:
    pytest.importorskip("opacus")
    before, moved = None, 0
    for network in steps_of(way, SMALL, 3):
        now = torch.cat([p.detach().flatten() for p in network.parameters()])
        moved += before is not None and not torch.equal(before, now)
        before = now
    assert before is not None and moved == 3 and bool(torch.isfinite(before).all())


def main() -> None:
    """Print the table, or one process's part of it."""
    if len(sys.argv) == 3:
        print(json.dumps(measured(sys.argv[2], MODELS[sys.argv[1]])))
        return
    print(f"{platform.machine()}, torch {torch.__version__}, medians of {ROUNDS} processes")
    for model in MODELS:
        found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for _ in range(ROUNDS):
            for way in WAYS:
                done = subprocess.run(
                    [sys.executable, __file__, model, way], capture_output=True, text=True
                )
                if done.returncode:
                    found[way].append(
                        dict.fromkeys(("setup", "first", "later", "peak"), float("nan"))
                    )
                else:
                    found[way].append(json.loads(done.stdout.splitlines()[-1]))
        unit = statistics.median(one["later"] for one in found["sgd"])
        print(f"{model}: {unit:.3g} s a step of plain SGD")
        for way, runs in found.items():
            middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            print(
                f"  {way:8s} later {middle['later'] / unit:5.2f}  first / later "
                f"{middle['first'] / middle['later']:5.2f}  setup {middle['setup'] / unit:5.2f}  "
                f"peak {middle['peak']:.2f} GiB"
            )
    times = clipping()
    print(f"clipping: ours / Opacus {times['ours'] / times['opacus']:.2f}")


if __name__ == "__main__":
    main()
