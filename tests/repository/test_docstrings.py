# SPDX-License-Identifier: Apache-2.0
"""Every example in a docstring of the package runs and prints the value that it states."""

from __future__ import annotations

import doctest
import importlib
import warnings
from types import ModuleType

import pytest
from package_source import modules, names

# Packages of the extras, by the folder that needs them.
EXTRAS = {
    "audit.estimators": ["sklearn"],
    "audit.training": ["torch", "opacus"],
    "cli": ["typer", "rich"],
    "experiments": ["sklearn", "torch", "matplotlib", "rich"],
    "federated.flower": ["flwr"],
    "fitting": ["pyarrow"],
    "jax": ["jax"],
    "linear_model": ["sklearn"],
    "optax": ["optax"],
    "plots": ["matplotlib"],
    "preprocessing": ["sklearn"],
    "tables": ["pyarrow", "yaml"],
    "torch": ["torch", "opacus"],
    "torch.device": ["triton"],
    "torch.frameworks.lightning": ["lightning"],
    "torch.frameworks.trainer": ["transformers", "accelerate"],
}
# At least so many modules show examples.
WITH_EXAMPLES = 90


def load(parts: tuple[str, ...]) -> ModuleType:
    """Import a module, or skip the test where an extra that it needs is not installed."""
    for depth in range(1, len(parts) + 1):
        for extra in EXTRAS.get(".".join(parts[:depth]), []):
            pytest.importorskip(extra, reason=f"{extra} is an optional extra")
    return importlib.import_module(".".join(("dpftrl_fast", *parts)))


@pytest.mark.parametrize("parts", [p for p in names() if p[-1:] != ("__main__",)], ids=".".join)
def test_examples(parts: tuple[str, ...]) -> None:
    if parts[:2] == ("torch", "frameworks"):
        pytest.importorskip("torch")
        importlib.import_module("torchvision_ops").declare()
    module = load(parts)
    with warnings.catch_warnings():
        if parts[:2] == ("torch", "frameworks"):  # whose tools warn of each other
            warnings.simplefilter("ignore")
        found = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.failed == 0


def test_the_package_has_examples() -> None:
    with_examples = [
        module for module in modules().values() if ">>> " in module.path.read_text("utf-8")
    ]
    assert len(with_examples) >= WITH_EXAMPLES
