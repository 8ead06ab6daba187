# SPDX-License-Identifier: Apache-2.0
"""`fix_model`: replace the layers of a model that cannot be trained privately as they are."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import is_parametrized

from dpftrl_fast._validate import flag, positive_integer
from dpftrl_fast.torch.gradients.layers import GradSampleMode, incompatible_layers
from dpftrl_fast.torch.gradients.opacus_layers import is_wrapped
from dpftrl_fast.torch.plain_layers import FixedNorm, NormAct, PlainBag, SplitAttention

_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel)


class Change(NamedTuple):
    """A change that `fix_model` made to a layer.

    Attributes
    ----------
    name : str
        Of the layer in the model, "" for the model itself.
    layer : str
        Type of the layer before.
    what : str
        What was done, a sentence.
    same_function : bool
        Whether the layer computes what it did.
    """

    name: str
    layer: str
    what: str
    same_function: bool

    def __str__(self) -> str:
        mark = "" if self.same_function else " (ANOTHER FUNCTION)"
        return f"{self.name or 'the model'} ({self.layer}): {self.what}{mark}"


class FixedModel(NamedTuple):
    """Result of `fix_model`; printed, it is the list of the changes.

    Attributes
    ----------
    model : nn.Module
        The model with its layers replaced.
    changes : list of Change
        All that was done, in the order of the layers; empty if nothing had to be.

    Examples
    --------
    >>> fixed = fix_model(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()))
    >>> [(one.name, one.layer) for one in fixed.changes]
    [('1', 'BatchNorm1d')]
    >>> fixed.model[1]
    GroupNorm(2, 8, eps=1e-05, affine=True, bias=True)
    """

    model: nn.Module
    changes: list[Change]

    def refused(self, mode: GradSampleMode = "hooks") -> list[str]:
        """Return the layers that a mode still refuses, as `incompatible_layers` names them."""
        return incompatible_layers(self.model, mode)

    def __str__(self) -> str:
        if not self.changes:
            return "fix_model: no layer had to be changed"
        others = sum(not change.same_function for change in self.changes)
        return "\n- ".join(
            [
                f"fix_model: {len(self.changes)} changes, {others} to another function",
                *map(str, self.changes),
            ]
        )


def fix_model(
    model: nn.Module, *, inplace: bool = False, batch_first: bool = True, max_groups: int = 32
) -> FixedModel:
    """Replace what `make_private` refuses in a model by layers that can be trained privately.

    Call it before the optimiser is made: an optimiser of the model before holds parameters that the
    fixed model does not have, and `make_private` refuses it.

    ==================================== ===========================================================
    found                                becomes
    ==================================== ===========================================================
    ``inplace=True`` of an activation    ``inplace=False``
    BatchNorm, timm's ``BatchNormAct2d`` GroupNorm with its weights (and the activation): **another
                                         function**, the running statistics are lost
    frozen BatchNorm (in evaluation mode a fixed scale and shift, and its weights
    in a model in training mode)
    InstanceNorm with running statistics without them: another function in evaluation
    ``nn.MultiheadAttention``            four linear layers
    ``nn.LSTM``, ``GRU``, ``RNN``        Opacus's ``DPLSTM``, ``DPGRU``, ``DPRNN`` and their cells
    and their cells
    ``nn.EmbeddingBag``                  ``nn.Embedding`` and a sum, for bags of one length
    ``weight_norm``, ``spectral_norm``   removed; the weights stay as they are now
    ``sparse``, ``max_norm`` and         off; rows longer than ``max_norm`` are shortened once
    ``scale_grad_by_freq`` of embeddings
    ==================================== ===========================================================

    All else stays: what a `forward` method does by itself (``x += y``, positions of one row, a
    parameter outside of a layer) cannot be changed from outside.

    Parameters
    ----------
    model : nn.Module
        Left as it is unless `inplace`.
    inplace : bool
        Change `model` itself. By default a copy is changed, which has parameters of its own.
    batch_first : bool
        As for `make_private`: whether examples are along the first dimension of the inputs of
        layers, and so of those that are put in.
    max_groups : int
        Most groups of a GroupNorm. It has the largest number that divides its channels and leaves
        four or more to a group.

    Returns
    -------
    FixedModel
        (model, changes). Values of parameters and their `requires_grad` are kept, and so are modes
        of training. Names of parameters change where a layer is replaced by several.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described above, or `inplace` is given and the model itself is a
        layer to be replaced.

    Examples
    --------
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    >>> fixed = fix_model(model)
    >>> print(fixed)
    fix_model: 2 changes, 1 to another function
    - 1 (BatchNorm2d): now a GroupNorm of 2 groups, without running statistics (ANOTHER FUNCTION)
    - 2 (ReLU): inplace=False
    >>> fixed.refused()
    []
    >>> optimizer = torch.optim.SGD(fixed.model.parameters(), lr=0.1)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a Module, got {type(model).__name__}")
    if hasattr(model, "_orig_mod") or is_wrapped(model) or isinstance(model, _WRAPPERS):
        raise ValueError(
            "model must be the network itself, got one that is wrapped "
            f"({type(model).__name__}): call fix_model before the wrapper"
        )
    positive_integer("max_groups", max_groups)
    fixer = _Fixer(flag("batch_first", batch_first), max_groups, model.training)
    if not flag("inplace", inplace):
        model = _copied(model)
    fixed = fixer.fix("", model)
    if inplace and fixed is not model:
        raise ValueError(
            f"model must be a module whose layers are replaced, got the layer itself "
            f"({type(model).__name__}): inplace=False returns the new one"
        )
    return FixedModel(fixed, fixer.changes)


class _Fixer:
    def __init__(self, batch_first: bool, max_groups: int, training: bool) -> None:
        self.changes: list[Change] = []
        self._batch_first, self._max_groups, self._training = batch_first, max_groups, training
        self._done: dict[int, nn.Module] = {}
        self._kept: list[nn.Module] = []  # so that no id is used again

    def fix(self, name: str, layer: nn.Module) -> nn.Module:
        """Return the layer or what replaces it, its parts fixed; the same for the same layer."""
        if id(layer) in self._done:
            return self._done[id(layer)]
        found = layer
        for kind, what, same, replacement in self._replaced(layer):
            self.changes.append(Change(name, kind, what, same))
            found = replacement
        self._done[id(layer)] = self._done[id(found)] = found
        self._kept += [layer, found]
        if not type(found).__module__.startswith("opacus."):
            for key, child in list(found._modules.items()):
                if child is not None:
                    found._modules[key] = self.fix(f"{name}.{key}" if name else key, child)
        return found

    def _replaced(self, layer: nn.Module) -> Iterator[tuple[str, str, bool, nn.Module]]:
        """Yield what is done to a layer: its type, a sentence, whether it computes the same, it."""
        for what in _undo_norms(layer):  # which gives a layer its own type again
            yield type(layer).__name__, what, True, layer
        kind = type(layer).__name__
        if getattr(layer, "inplace", None) is True:
            vars(layer)["inplace"] = False
            yield kind, "inplace=False", True, layer
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
            for what in _plain_settings(layer):
                yield kind, what, True, layer
        found: tuple[str, bool, nn.Module] | None = None
        if isinstance(layer, _BatchNorm):
            found = self._norm(layer)
        elif isinstance(layer, _InstanceNorm) and layer.track_running_stats:
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
            found = "its running statistics are gone: evaluation takes each input's", False, layer
        elif isinstance(layer, nn.MultiheadAttention):
            found = self._attention(layer)
        elif isinstance(layer, (nn.RNNBase, nn.RNNCellBase)):
            found = _recurrent(layer)
        elif type(layer) is nn.EmbeddingBag:
            found = "now an Embedding and a sum, for bags of one length", True, PlainBag(layer)
        elif isinstance(layer, nn.TransformerEncoder) and getattr(
            layer, "use_nested_tensor", False
        ):
            layer.use_nested_tensor = layer.enable_nested_tensor = False
            found = "enable_nested_tensor=False", True, layer
        if found is not None:
            what, same, replacement = found
            if replacement is not layer:
                _hand_over_hooks(layer, replacement)
            yield kind, what, same, replacement.train(layer.training)

    def _norm(self, layer: _BatchNorm) -> tuple[str, bool, nn.Module] | None:
        frozen = self._training and not layer.training and layer.running_mean is not None
        norm: nn.Module
        if frozen:
            norm, what = FixedNorm(layer), "frozen, now a fixed scale and shift"
        else:
            groups = _groups(layer.num_features, self._max_groups)
            norm = nn.GroupNorm(groups, layer.num_features, layer.eps, affine=False)
            norm.affine, norm.weight, norm.bias = layer.affine, layer.weight, layer.bias
            plural = "" if groups == 1 else "s"
            what = f"now a GroupNorm of {groups} group{plural}, without running statistics"
        parts = {name: child for name, child in layer.named_children()}
        if parts and not {*parts} <= {"drop", "act"}:
            return None
        if parts:
            norm = NormAct(norm, parts.get("drop", nn.Identity()), parts.get("act", nn.Identity()))
            what += ", then its activation"
        return what, frozen, norm

    def _attention(self, layer: nn.MultiheadAttention) -> tuple[str, bool, nn.Module] | None:
        trained = any(p.requires_grad for p in layer.parameters())
        own = type(layer).forward is not nn.MultiheadAttention.forward
        if not trained or own or layer.bias_k is not None:
            return None
        split = SplitAttention(layer, rows_first=self._batch_first)
        return "now four linear layers: q_proj, k_proj, v_proj, out_proj", True, split


def _groups(channels: int, most: int) -> int:
    """Return the largest number of groups that leaves four channels or more to each.

    A group of one channel without width and height would be zero whatever it gets.
    """
    most = max(1, min(most, channels // 4))
    return next(groups for groups in range(most, 0, -1) if channels % groups == 0)


def _recurrent(layer: Any) -> tuple[str, bool, nn.Module] | None:
    from opacus.layers import dp_rnn

    if isinstance(layer, nn.RNNCellBase):
        kinds: dict[Any, Any] = {
            nn.LSTMCell: dp_rnn.DPLSTMCell,
            nn.GRUCell: dp_rnn.DPGRUCell,
            nn.RNNCell: dp_rnn.DPRNNCell,
        }
        if type(layer) not in kinds:
            return None
        more = {"nonlinearity": layer.nonlinearity} if type(layer) is nn.RNNCell else {}
        cell = kinds[type(layer)](layer.input_size, layer.hidden_size, layer.bias, **more)
        names = {"weight_ih": "ih.weight", "weight_hh": "hh.weight"}
        if layer.bias:
            names |= {"bias_ih": "ih.bias", "bias_hh": "hh.bias"}
        _hand_over(layer, cell, names)
        return f"now Opacus's {type(cell).__name__}", True, cell
    kinds = {nn.LSTM: dp_rnn.DPLSTM, nn.GRU: dp_rnn.DPGRU, nn.RNN: dp_rnn.DPRNN}
    if type(layer) not in kinds or layer.proj_size > 0:
        return None
    more = {"nonlinearity": layer.nonlinearity} if type(layer) is nn.RNN else {}
    made = kinds[type(layer)](
        layer.input_size, layer.hidden_size, layer.num_layers, layer.bias, layer.batch_first,
        layer.dropout, layer.bidirectional, **more,
    )  # fmt: skip
    _hand_over(layer, made, made.new_to_old)
    made.flatten_parameters = _nothing
    return f"now Opacus's {type(made).__name__}", True, made


def _nothing() -> None:
    """Stand for `flatten_parameters`, which forward methods call."""


def _hand_over(old: nn.Module, new: nn.Module, names: dict[str, str]) -> None:
    """Give a layer the parameters of another; `names` leads from the old to the new ones."""
    for name, p in old.named_parameters(recurse=False):
        path, _, key = names[name].rpartition(".")
        new.get_submodule(path)._parameters[key] = p
        if name in new._parameters:  # Opacus's layers list theirs under both names
            new._parameters[name] = p


def _hand_over_hooks(old: nn.Module, new: nn.Module) -> None:
    """Register what the caller has registered on a layer on the one that replaces it."""
    for name, registered in vars(old).items():
        if registered and name.startswith(("_forward_", "_backward_")) and "hooks" in name:
            getattr(new, name).update(registered)


def _undo_norms(layer: nn.Module) -> Iterator[str]:
    """Remove weight_norm and spectral_norm, old and new, and say so."""
    from torch.nn.utils import parametrizations, remove_spectral_norm, remove_weight_norm
    from torch.nn.utils.spectral_norm import SpectralNorm
    from torch.nn.utils.weight_norm import WeightNorm

    kept, free = "the weight stays as it is now", ", no norm is held from here on"
    for hook in list(layer._forward_pre_hooks.values()):
        trained = any(p.requires_grad for p in layer.parameters(recurse=False))
        if isinstance(hook, WeightNorm):
            remove_weight_norm(layer, hook.name)
            what = f"weight_norm of {hook.name} removed: {kept}"
        elif isinstance(hook, SpectralNorm):
            remove_spectral_norm(layer, hook.name)
            what = f"spectral_norm of {hook.name} removed: {kept}{free}"
        else:
            continue
        getattr(layer, hook.name).requires_grad_(trained)
        yield what
    if not is_parametrized(layer):
        return
    kinds: Any = {
        getattr(parametrizations, "_WeightNorm", None): "weight_norm",
        getattr(parametrizations, "_SpectralNorm", None): "spectral_norm",
    }
    lists: Any = layer.parametrizations
    for name, steps in list(lists.items()):
        names = [kinds.get(type(step)) for step in steps]
        if None in names:
            continue
        trained, mode = any(p.requires_grad for p in steps.parameters()), layer.training
        # Removing takes the weight out of the class, which a copy shares with the model before.
        own: Any = type(layer)
        shared = {k: v for k, v in vars(own).items() if k not in ("__dict__", "__weakref__")}
        layer.__class__ = type(own.__name__, own.__bases__, shared)
        layer.eval()  # a pass in training mode would move spectral_norm's vectors
        steps.requires_grad_(True)  # a weight that is not trained would become a buffer
        parametrize.remove_parametrizations(layer, name)
        layer.train(mode)
        getattr(layer, name).requires_grad_(trained)
        more = free if "spectral_norm" in names else ""
        yield f"{' and '.join(map(str, names))} of {name} removed: {kept}{more}"


def _plain_settings(layer: nn.Embedding | nn.EmbeddingBag) -> Iterator[str]:
    """Turn the settings of an embedding off that mix examples or act outside of the noise."""
    if layer.sparse:
        layer.sparse = False
        yield "sparse=False"
    if layer.scale_grad_by_freq:
        layer.scale_grad_by_freq = False
        yield "scale_grad_by_freq=False: gradients are not divided by counts"
    if layer.max_norm is not None:
        with torch.no_grad():
            norms = layer.weight.norm(layer.norm_type, dim=1, keepdim=True)
            layer.weight.mul_((layer.max_norm / norms).clamp(max=1.0))
        layer.max_norm = None
        yield "max_norm=None: rows above it were shortened, once"


def _copied(model: nn.Module) -> nn.Module:
    """Return a deep copy; weights that a hook makes anew in each pass are no parameters."""
    memo: dict[int, Any] = {}
    for layer in model.modules():
        for value in vars(layer).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(model, memo)
