# SPDX-License-Identifier: Apache-2.0
"""Parameters as one vector: coordinates, blocks, and what is refused once a run has begun."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpftrl_fast.torch.flat.layout import ParameterLayout
from dpftrl_fast.torch.flat.views import FlatViews


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape, dtype=dtype))


def groups(*members: list[Any]) -> list[dict[str, Any]]:
    return [{"params": list(group)} for group in members]


def test_every_tensor_has_coordinates_of_its_own() -> None:
    layout = ParameterLayout.of(
        groups([parameter(2, 3), parameter(2, 3)], [parameter(), parameter(0, 4), parameter(5)])
    )
    used = [c for entry in layout.entries for c in range(entry.start, entry.start + entry.count)]
    assert used == list(range(18))
    assert layout.ranges == [(0, 18)]
    assert layout.group_sizes == [2, 3]


def test_frozen_parameters_have_no_coordinates() -> None:
    frozen = parameter(4).requires_grad_(False)
    layout = ParameterLayout.of(groups([parameter(2), frozen, parameter(3)]))
    assert [(entry.name, entry.start) for entry in layout.entries] == [("0.0", 0), ("0.2", 2)]


def test_names_given_to_the_optimiser_are_used() -> None:
    group = {"params": [parameter(1)], "param_names": ["layer.weight"]}
    assert ParameterLayout.of([group]).entries[0].name == "layer.weight"


@pytest.mark.parametrize(
    "other",
    [
        groups([parameter(3), parameter(2)]),
        groups([parameter(2)], [parameter(3)]),
        groups([parameter(2), parameter(3, dtype=torch.bfloat16)]),
        groups([parameter(2), parameter(3), parameter(1)]),
        groups([parameter(2), parameter(3, 1)]),
        [{"params": [parameter(2), parameter(3)], "param_names": ["a", "b"]}],
    ],
)
def test_the_fingerprint_tells_layouts_apart(other: list[dict[str, Any]]) -> None:
    own = groups([parameter(2), parameter(3)])
    again = groups([parameter(2), parameter(3)])
    assert ParameterLayout.of(own).fingerprint() == ParameterLayout.of(again).fingerprint()
    assert ParameterLayout.of(own).fingerprint() != ParameterLayout.of(other).fingerprint()


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([], "got none"),
        ([parameter(3).requires_grad_(False)], "got none"),
        ([parameter(0)], "got none"),
        ([parameter(2, dtype=torch.complex64)], "dense tensor of float32"),
        ([nn.Parameter(torch.zeros(1).expand(4))], "memory for each of its elements"),
        ([parameter(2), nn.Parameter(torch.zeros(2, device="meta"))], "one device"),
    ],
)
def test_what_cannot_be_laid_out_is_refused(members: list[nn.Parameter], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ParameterLayout.of(groups(members))


def test_a_parameter_that_comes_twice_is_refused() -> None:
    p = parameter(2)
    with pytest.raises(ValueError, match=r"once, got 1\.0 twice"):
        ParameterLayout.of(groups([p], [p]))


def test_changes_after_the_start_are_refused() -> None:
    p, q = parameter(2), parameter(3)
    now = groups([p, q])
    layout = ParameterLayout.of(now)
    assert layout.parameters(now) == [p, q]

    with pytest.raises(ValueError, match=r"must have \[2\] parameters.*got \[1\]"):
        layout.parameters(groups([p]))
    q.requires_grad_(False)
    with pytest.raises(ValueError, match=r"got \[1\]"):
        layout.parameters(now)
    q.requires_grad_(True)
    q.data = torch.zeros(4)
    with pytest.raises(ValueError, match=r"0\.1 must be of shape \(3,\).*got \(4,\)"):
        layout.parameters(now)
    q.data = torch.zeros(3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"float32.*got \(3,\), torch.float64"):
        layout.parameters(now)


def test_a_parameter_in_the_place_of_another_is_refused() -> None:
    p, q = parameter(2), parameter(2).requires_grad_(False)
    now = groups([p, q])
    layout = ParameterLayout.of(now)
    p.requires_grad_(False)
    q.requires_grad_(True)
    with pytest.raises(ValueError, match=r"0\.0 must be the parameter that it was"):
        layout.parameters(now)
    with pytest.raises(ValueError, match=r"0\.0 must be the parameter that it was"):
        layout.parameters(groups([parameter(2)]))


def test_gradients_that_take_no_noise_are_refused() -> None:
    p = parameter(4, 2)
    layout = ParameterLayout.of(groups([p]))
    assert layout.gradients([p]) == [None]
    p.grad = torch.eye(4, 2).to_sparse()
    with pytest.raises(ValueError, match=r"gradient of 0\.0 must be dense.*sparse=False"):
        layout.gradients([p])

    half = parameter(4, dtype=torch.bfloat16)
    layout = ParameterLayout.of(groups([half]))
    half.grad = torch.zeros(4, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"sum of 0\.0 must be torch\.float32"):
        layout.gradients([half])


SHAPES: list[tuple[int, ...]] = [(3,), (2, 5), (), (0, 2), (40,), (7,), (1, 1), (6, 6)]


def transposed(tensor: Tensor) -> Tensor:
    return tensor.t().contiguous().t() if tensor.dim() == 2 else tensor


@pytest.mark.parametrize("block_size", [1, 7, 16, 1000])
@pytest.mark.parametrize("strided", [False, True])
def test_blocks_copy_what_a_concatenation_would(block_size: int, strided: bool) -> None:
    change = transposed if strided else torch.clone
    tensors = [change(torch.randn(shape)) for shape in SHAPES]
    flat = FlatViews(tensors, [3, 0, 5], block_size=block_size)
    expected = torch.cat([tensor.reshape(-1) for tensor in tensors])
    assert flat.size == expected.numel()
    assert [block.start for block in flat.blocks[1:]] == [block.stop for block in flat.blocks[:-1]]
    assert {block.group for block in flat.blocks if block.stop <= 14} == {0}
    assert {block.group for block in flat.blocks if block.start >= 14} == {2}
    assert strided or all(block.stop - block.start <= block_size for block in flat.blocks)

    vector = torch.ones(flat.size)
    for block in flat.blocks:
        flat.add_to(vector[block.part], block, tensors)
    assert torch.equal(vector, expected + 1)
    for block in flat.blocks:
        flat.copy_to(vector[block.part], block, tensors)
    assert torch.equal(vector, expected)

    back = [change(torch.zeros(shape)) for shape in SHAPES]
    for block in flat.blocks:
        flat.copy_from(vector[block.part], block, back)
    for tensor, found in zip(tensors, back, strict=True):
        assert torch.equal(tensor, found)


def test_missing_tensors_count_as_zeros() -> None:
    flat = FlatViews([torch.zeros(2), torch.zeros(3)], [2])
    vector = torch.ones(5)
    flat.copy_to(vector, flat.blocks[0], [None, torch.full((3,), 2.0)])
    assert vector.tolist() == [0, 0, 2, 2, 2]


def test_half_precision_is_converted_on_the_way() -> None:
    half = torch.tensor([0.1, 0.2], dtype=torch.bfloat16)
    flat = FlatViews([half], [1])
    vector = torch.zeros(2)
    flat.add_to(vector, flat.blocks[0], [half])
    assert torch.equal(vector, half.float())
    vector.add_(2**-20)
    flat.copy_from(vector, flat.blocks[0], [half])
    assert torch.equal(half, vector.bfloat16())
