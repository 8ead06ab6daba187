# SPDX-License-Identifier: Apache-2.0
"""The trained layers of a network, and the parameters beside them, as hooks see them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from dpftrl_fast.torch.gradients.formulas import Formula, has_formula
from dpftrl_fast.torch.gradients.layers import is_remade, label_of
from dpftrl_fast.torch.gradients.opacus_layers import is_opacus
from dpftrl_fast.torch.gradients.row_errors import of_rows


class Layer:
    """A trained layer of the network.

    Attributes
    ----------
    places : dict of str to int
        Index of each of its parameters among those of the optimiser.
    shared : str or None
        Input of the layer that has no examples: "one" row, or "none". It is expanded to the
        examples.
    """

    def __init__(
        self, module: nn.Module, label: str, formula: Formula, dim: int, places: dict[str, int]
    ) -> None:
        self.module, self.label, self.formula, self.places = module, label, formula, places
        self.shared: str | None = None
        self.recurrent = is_opacus(module, "RNNLinear")  # it gets the examples of one time step
        self.dim = 0 if self.recurrent else dim
        # Layers with formulas do not need their outputs in the backward pass.
        self.may_change = has_formula(module)
        # A layer of torch.func is taken with the layers in it.
        self.owners = [module] if has_formula(module) else [*module.modules()]
        self.swapped: list[tuple[nn.Module, str, nn.Parameter]] = []
        self.x: Tensor | None = None


class Loose:
    """A parameter that a module with other layers in it uses by itself: a token, positions.

    In a captured pass each example has its own copy, of shape (examples, *shape), where `shape` is
    that of the parameter without a first dimension of 1, or with dimensions of 1 before it.
    """

    def __init__(self, module: nn.Module, name: str, parameter: nn.Parameter, label: str) -> None:
        self.module, self.name, self.parameter, self.label = module, name, parameter, label
        self.ones: int | None = None

    def leaf(self, rows: int) -> Tensor:
        """Return the copies of so many examples."""
        p = self.parameter.detach()
        shape = p.shape[1:] if self.is_certain else (*(1,) * (self.ones or 0), *p.shape)
        return p.reshape(1, *shape).expand(rows, *shape).requires_grad_()

    @property
    def is_certain(self) -> bool:
        """Whether there is one way only."""
        return self.parameter.dim() > 1 and self.parameter.shape[0] == 1


def one_tensor(layer: Layer, args: Any, kwargs: Any) -> Tensor:
    """Return the one argument of a layer; ValueError if it gets another number of them."""
    if len(args) == 1 and not kwargs and isinstance(args[0], Tensor):
        return args[0]
    if not args and len(kwargs) == 1 and isinstance(given := next(iter(kwargs.values())), Tensor):
        return given
    raise of_rows(
        f"{layer.label} must get one tensor, got {len(args)} arguments and the keywords "
        f"{sorted(kwargs)}: grad_sample_mode='vmap' takes any"
    )


def trained_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield ("layer" or "loose", module, label) for the modules that own trained parameters."""
    seen: set[int] = set()

    def walk(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module, str]]:
        if id(module) in seen:
            return
        seen.add(id(module))
        label = label_of(name, module)
        children = [(f"{name}.{n}" if name else n, c) for n, c in module.named_children()]
        if is_remade(module) and any(p.requires_grad for p in module.parameters()):
            seen.update(map(id, module.modules()))
            yield "layer", module, label
        elif any(p.requires_grad for p in module.parameters(recurse=False)):
            has_inner = any(p.requires_grad for _, c in children for p in c.parameters())
            kind = "loose" if has_inner and not has_formula(module) else "layer"
            yield kind, module, label
        for n, child in children:
            yield from walk(child, n)

    yield from walk(model, "")
