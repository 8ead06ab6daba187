# SPDX-License-Identifier: Apache-2.0
"""The Python blocks of the pages about PyTorch run; each recipe by itself."""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torchvision_ops

DOCS = Path(__file__).parents[2] / "docs" / "torch"
#: Pages of recipes: a block is a whole program.
PROGRAMS = ("start", "data", "frameworks", "gradients")
#: A page whose blocks continue each other.
IN_ORDER = ("optimizer",)
TOOLS = ("accelerate", "lightning", "peft", "torchvision", "transformers")
BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)

torchvision_ops.declare()


def programs() -> Iterator[object]:
    """Each block with the heading before it."""
    for page in PROGRAMS:
        text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
        for found in BLOCK.finditer(text):
            heading = re.findall(r"^#+ (.*)$", text[: found.start()], re.MULTILINE)[-1]
            yield pytest.param(found.group(1), id=f"{page}: {heading}")


@pytest.fixture
def one_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[warnings.WarningMessage]]:
    """Run in an empty folder, as the only process of torchrun; yield the warnings."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    for name, value in alone.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield found
    torch.set_num_threads(threads)
    torch.set_rng_state(state)
    assert not dist.is_initialized()


def run(block: str, page: str, namespace: dict[str, object]) -> None:
    for tool in TOOLS:
        used = re.search(rf"^(import|from) {tool}\b", block, re.MULTILINE)
        if used and importlib.util.find_spec(tool) is None:
            pytest.skip(f"needs {tool}")
    exec(compile(block, f"{page}.md", "exec"), namespace)


@pytest.mark.parametrize("block", [*programs()])
def test_a_recipe_runs_by_itself(
    block: str, one_program: list[warnings.WarningMessage], capsys: pytest.CaptureFixture[str]
) -> None:
    namespace: dict[str, object] = {"__name__": "recipe"}
    run(block, "start", namespace)
    said = capsys.readouterr()
    assert "grad_sample_mode='hooks'" in said.err or 'grad_sample_mode="vmap"' in block
    own = [str(w.message) for w in one_program if "dpftrl_fast" in w.filename]
    assert own == []
    if "print(" in block:
        stated = [float(x) for x in re.findall(r"(?:epsilon|replace-one) ([\d.]+)", said.out)]
        assert len(stated) >= 2 and 7.9 < stated[-2] <= 8.0 < stated[-1]


@pytest.mark.parametrize("page", IN_ORDER)
def test_blocks_run_in_order(page: str, one_program: object) -> None:
    namespace: dict[str, object] = {}
    blocks = BLOCK.findall((DOCS / f"{page}.md").read_text(encoding="utf-8"))
    assert len(blocks) > 1
    for block in blocks:
        run(block, page, namespace)


def test_every_recipe_has_its_block() -> None:
    """And each is as short as a screen."""
    text = (DOCS / "start.md").read_text(encoding="utf-8")
    recipes = text.partition("## Recipes")[2].partition("## The rules")[0]
    sections = re.split(r"^### ", recipes, flags=re.MULTILINE)[1:]
    assert len(sections) == 6
    for section in sections:
        (block,) = BLOCK.findall(section)
        assert len(block.splitlines()) <= 40, section.splitlines()[0]
