# SPDX-License-Identifier: Apache-2.0
"""Passes of a private model run as they are written, also if ``torch.compile`` is given the model.

A compiler would trace the hooks on the layers, or ``torch.func`` around them, as a part of the
model. So it is told to leave the passes alone, with what is compiled in them.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

_disabled: Callable[[Any], Any] = torch.compiler.disable


def running_eagerly() -> AbstractContextManager[Any]:
    """Run functions and modules that were compiled as they are written, within the context."""
    set_stance = getattr(torch.compiler, "set_stance", None)  # torch 2.6
    return nullcontext() if set_stance is None else set_stance("force_eager")


def uncompiled(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is not compiled, and runs what is compiled in it as it is written.

    Examples
    --------
    >>> model = torch.compile(nn.Linear(2, 1), backend="eager")
    >>> uncompiled(model)(torch.ones(3, 2)).shape
    torch.Size([3, 1])
    """

    def eager(*args: Any, **kwargs: Any) -> Any:
        with running_eagerly():
            return call(*args, **kwargs)

    found: Callable[..., Any] = _disabled(eager)
    return found


class Forward:
    """Stands for the forward pass of one network; a copy of the network has its own again.

    Parameters
    ----------
    network : nn.Module
    call : callable, optional
        Runs in the place of the network's forward pass, which runs in calls of the network from
        there. By default the forward pass itself, which is never compiled then.

    Examples
    --------
    >>> network = nn.Linear(2, 1)
    >>> forward = Forward(network, lambda x: network(x) + 100.0)
    >>> bool(network(torch.ones(3, 2)).min() > 50.0)
    True
    >>> forward.remove()
    >>> bool(network(torch.ones(3, 2)).min() > 50.0)
    False
    """

    of_dpftrl = True
    # And no attributes in which tensors are sought.
    __slots__ = ("__wrapped__", "_before", "_call", "_inside", "_network")

    def __init__(self, network: nn.Module, call: Callable[..., Any] | None = None) -> None:
        self._network, self._before = network, vars(network).get("forward")
        self.__wrapped__ = network.forward  # whose signature others look at
        self._call = uncompiled(self.__wrapped__ if call is None else call)
        self._inside = False
        vars(network)["forward"] = self

    def remove(self) -> None:
        """Give the network its own forward pass again."""
        if vars(self._network).get("forward") is self:
            del vars(self._network)["forward"]
            if self._before is not None:
                vars(self._network)["forward"] = self._before

    @_disabled
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward pass."""
        if self._inside:
            return self.__wrapped__(*args, **kwargs)
        self._inside = True
        try:
            return self._call(*args, **kwargs)
        finally:
            self._inside = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self._before is not None:
            return copy.deepcopy(self._before, memo)
        return _own_forward(memo[id(self._network)])

    def __reduce__(self) -> Any:
        if self._before is not None:
            return _itself, (self._before,)
        return _own_forward, (self._network,)


def _own_forward(network: nn.Module) -> Any:
    return types.MethodType(type(network).forward, network)


def _itself(forward: Any) -> Any:
    return forward
