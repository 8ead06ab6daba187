# SPDX-License-Identifier: Apache-2.0
"""The paper's network for 28 x 28 images, and the clipped sums of its per-example gradients.

The sums use formulas for these four layers, in single precision, several times as fast as hooks for
any model: the gradient of an example in a convolution is a product of two matrices
(output gradients, and the patches they belong to), that in a linear layer an outer product, whose
norm is the product of two norms. All compared methods use the same sums. They are exact to single
precision; the rounding margin of a guarantee is in `dpftrl_fast.torch`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LAST = torch.channels_last
_CLASSES = 10


class ImageNetwork(nn.Module):
    """Two convolutions, two linear layers, tanh: 26,010 parameters for ten classes.

    Kairouz et al. (2021), appendix, and Papernot et al. (2020): 16 filters 8 x 8 with stride 2 and
    padding 3, maximum over 2 x 2 with stride 1, 32 filters 4 x 4 with stride 2, maximum as before,
    32 units, the classes. tanh comes after the maximum, which is the same function.

    The weights, drawn with `seed`, are normal, of variance 1/inputs in the convolutions and
    2/(inputs + outputs) in the linear layers. Biases begin at 0.

    Examples
    --------
    >>> network = ImageNetwork(seed=0)
    >>> sum(p.numel() for p in network.parameters())
    26010
    >>> network(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 8, stride=2, padding=3)
        self.conv2 = nn.Conv2d(16, 32, 4, stride=2)
        self.linear1 = nn.Linear(512, 32)
        self.linear2 = nn.Linear(32, _CLASSES)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for layer in (self.conv1, self.conv2, self.linear1, self.linear2):
                inputs, outputs = layer.weight[0].numel(), layer.weight.shape[0]
                linear = isinstance(layer, nn.Linear)
                variance = 2.0 / (inputs + outputs) if linear else 1.0 / inputs
                layer.weight.normal_(0.0, math.sqrt(variance), generator=generator)
                assert layer.bias is not None
                layer.bias.zero_()

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs before the softmax, shape (n, 10), of images (n, 1, 28, 28)."""
        x = torch.tanh(F.max_pool2d(_by_channels(self.conv1(images)), 2, 1))
        x = torch.tanh(F.max_pool2d(self.conv2(x), 2, 1))
        x = torch.tanh(self.linear1(x.flatten(1)))
        outputs: Tensor = self.linear2(x)
        return outputs

    def accuracy(self, images: Tensor, labels: Tensor) -> float:
        """Return the share of correct classes."""
        right = 0
        with torch.no_grad():
            for start in range(0, len(labels), 1000):
                part = self(images[start : start + 1000]).argmax(1)
                right += int((part == labels[start : start + 1000]).sum())
        return right / len(labels)


def _by_channels(x: Tensor) -> Tensor:
    """Return x with channels innermost in memory: the maximum is ten times as fast there."""
    return x.contiguous(memory_format=_LAST)


def clipped_sums(
    network: ImageNetwork, images: Tensor, labels: Tensor, clip_norm: float
) -> list[Tensor]:
    """Return the sums of the gradients of the cross entropy, each clipped to a norm of clip_norm.

    The norm is over all parameters together; there is one sum a parameter, in the order of
    ``network.parameters()``. `images` have the shape (n, 1, 28, 28), where n may be 0.

    Examples
    --------
    >>> network = ImageNetwork(seed=0)
    >>> sums = clipped_sums(network, torch.rand(5, 1, 28, 28), torch.arange(5), 0.25)
    >>> bool(sum(part.square().sum() for part in sums) <= (5 * 0.25) ** 2)
    True
    """
    n = len(labels)
    if n == 0:
        return [torch.zeros_like(p) for p in network.parameters()]
    with torch.no_grad():
        w1, b1, w2, b2, w3, b3, w4, b4 = (p.detach() for p in network.parameters())
        z1 = _by_channels(F.conv2d(images, w1, b1, 2, 3)).requires_grad_()
        patches1 = _patches(F.pad(images, (3, 3, 3, 3)).contiguous(memory_format=_LAST), 8)
    # gradients of the outputs of the layers only, not of weights
    x1 = torch.tanh(F.max_pool2d(z1, 2, 1))
    z2 = F.conv2d(x1, _by_channels(w2), b2, 2)
    x2 = torch.tanh(F.max_pool2d(z2, 2, 1)).flatten(1)
    z3 = F.linear(x2, w3, b3)
    x3 = torch.tanh(z3)
    z4 = F.linear(x3, w4, b4)
    loss = F.cross_entropy(z4, labels, reduction="sum")
    g1, g2, g3, g4 = torch.autograd.grad(loss, (z1, z2, z3, z4))
    with torch.no_grad():
        g1, g2 = (g.permute(0, 2, 3, 1).flatten(1, 2) for g in (g1, g2))  # (n, places, filters)
        convolutions = [
            torch.bmm(g1.transpose(1, 2), patches1).flatten(1),
            g1.sum(1),
            torch.bmm(g2.transpose(1, 2), _patches(_by_channels(x1.detach()), 4)).flatten(1),
            g2.sum(1),
        ]
        squares = sum(_squares(part) for part in convolutions)
        squares = (
            squares + _squares(g3) * (1.0 + _squares(x2)) + _squares(g4) * (1.0 + _squares(x3))
        )
        factors = (clip_norm / squares.sqrt()).clamp(max=1.0)
        s1, t1, s2, t2 = (factors @ part for part in convolutions)
        g3, g4 = g3 * factors[:, None], g4 * factors[:, None]
        return [
            s1.view(16, 8, 8, 1).permute(0, 3, 1, 2).contiguous(),
            t1,
            s2.view(32, 4, 4, 16).permute(0, 3, 1, 2).contiguous(),
            t2,
            g3.t() @ x2.detach(),
            g3.sum(0),
            g4.t() @ x3.detach(),
            g4.sum(0),
        ]


def _patches(x: Tensor, size: int) -> Tensor:
    """Return the inputs of every place of a convolution of stride 2, shape (n, places, inputs).

    x has its channels innermost in memory; inputs are in the order (row, column, channel).
    """
    n, channels, height, width = x.shape
    rows, columns = (height - size) // 2 + 1, (width - size) // 2 + 1
    line = width * channels
    view = x.as_strided(
        (n, rows, columns, size, size * channels),
        (height * line, 2 * line, 2 * channels, line, 1),
    )
    return view.reshape(n, rows * columns, size * size * channels)


def _squares(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms.square()
