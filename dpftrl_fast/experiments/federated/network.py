# SPDX-License-Identifier: Apache-2.0
"""The paper's network for the next word, one layer of LSTM, with its gradient by hand.

Embedding, LSTM, two dense layers without a nonlinearity between them, softmax. The gradient of a
mini-batch takes about ten matrix products and two calls for the recurrence, in preallocated memory:
with 16 sequences of 20 words, automatic differentiation or new memory in each step would take
longer than the products.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.kernels.lstm import lstm_backward, lstm_forward

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

#: The first tokens of every vocabulary: nothing, begin and end of a sequence, any other word.
PAD, BEGIN, END, UNKNOWN = range(4)


class Sizes(NamedTuple):
    """Sizes of a network: vocabulary (with four special tokens), embedding, LSTM, dense layer.

    The number of units of the LSTM is a multiple of four.

    Examples
    --------
    >>> Sizes(504, 96, 64, 96).parameters
    144728
    >>> Sizes(10_004, 96, 670, 96).parameters  # the paper's
    4050748
    """

    vocabulary: int
    embedding: int
    units: int
    dense: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the parameters, in their order."""
        v, e, h, d = self
        return {
            "embedding": (v, e),
            "input": (e, 4 * h),
            "recurrent": (h, 4 * h),
            "gates": (4 * h,),
            "dense": (h, d),
            "dense_bias": (d,),
            "output": (d, v),
            "output_bias": (v,),
        }

    @property
    def parameters(self) -> int:
        """Their number."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def arrays(self, flat: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return the parameters by name: views of a flat vector."""
        found, start = {}, 0
        for name, shape in self.shapes.items():
            end = start + math.prod(shape)
            found[name] = flat[start:end].reshape(shape)
            start = end
        return found

    def initial(self, seed: int) -> Floats:
        """Return first parameters, flat: uniform by the sum of inputs and outputs (Glorot).

        Embeddings are uniform in +-1, biases 0 but for those of the forget gates, 1.
        """
        generator = np.random.default_rng([seed, 20210301])
        flat = np.zeros(self.parameters, np.float32)
        for name, array in self.arrays(flat).items():
            if name == "embedding":
                bound = 1.0
            elif array.ndim == 2:
                bound = math.sqrt(6.0 / sum(array.shape))
            else:
                continue
            array[...] = generator.uniform(-bound, bound, array.shape)
        self.arrays(flat)["gates"][self.units : 2 * self.units] = 1.0
        return flat


class Packed(NamedTuple):
    """A mini-batch without padding, see `dpftrl_fast.kernels.lstm`.

    `inputs` and `targets` are N tokens and their successors, which are to be predicted; `starts`
    the first place of each step, and N; `ids` the distinct input tokens, `order` the places sorted
    by input token, and `firsts` the first position of each of `ids` in this order.
    """

    inputs: Ints
    targets: Ints
    starts: Ints
    ids: Ints
    order: Ints
    firsts: Ints

    @classmethod
    def of(cls, tokens: NDArray[Any]) -> Packed:
        """Pack sequences, shape (B, T + 1), that are padded at the end.

        Examples
        --------
        >>> batch = Packed.of(np.array([[BEGIN, 7, PAD], [BEGIN, 8, END]]))
        >>> batch.inputs.tolist(), batch.targets.tolist(), batch.starts.tolist()
        ([1, 1, 8], [8, 7, 2], [0, 2, 3])
        """
        lengths = (tokens[:, 1:] != PAD).sum(1)
        if not lengths.any():
            raise ValueError("expected tokens to predict, got none")
        sorted_rows = tokens[np.argsort(-lengths, kind="stable")].T.astype(np.int64)
        real = sorted_rows[1:] != PAD
        inputs, targets = sorted_rows[:-1][real], sorted_rows[1:][real]
        steps = np.concatenate([[0], real.sum(1)])
        order = np.argsort(inputs, kind="stable")
        ids, firsts = np.unique(inputs[order], return_index=True)
        starts = np.cumsum(steps[: int(lengths.max()) + 1])
        return cls(inputs, targets, starts, ids, order, firsts)


class NextToken:
    """Gradient and accuracy of a network, with their memory; not for use by two threads.

    `places` is the largest number of tokens to predict in a mini-batch.

    Examples
    --------
    >>> sizes = Sizes(20, 8, 4, 8)
    >>> network, theta = NextToken(sizes, 64), sizes.initial(0)
    >>> batch = Packed.of(np.array([[BEGIN, 7, 8, END, PAD]]))
    >>> gradient = np.empty_like(theta)
    >>> for _ in range(300):
    ...     loss = network.gradient(theta, batch, gradient)
    ...     theta -= 0.5 * gradient
    >>> network.accuracy(theta, batch)
    (2, 2)
    """

    def __init__(self, sizes: Sizes, places: int) -> None:
        self.sizes = sizes
        v, e, h, d = sizes
        self._places = places
        widths = {"x": e, "dx": e, "z": 4 * h, "u": d, "du": d, "p": v, "dh": h}
        self._buffers = {
            name: np.empty((places, width), np.float32) for name, width in widths.items()
        }

    def gradient(self, theta: Floats, batch: Packed, out: Floats) -> float:
        """Write the gradient of the mean loss over the tokens to predict, and return the loss."""
        parts, grads = self.sizes.arrays(theta), self.sizes.arrays(out)
        count = len(batch.inputs)
        x, z, h, tanh_c, before, c = self._states(parts, batch)
        u, p = self._outputs(parts, h)
        chosen = (np.arange(count), batch.targets)
        with np.errstate(divide="ignore"):
            loss = -float(np.log(p[chosen]).mean())
        p *= np.float32(1.0 / count)
        p[chosen] -= np.float32(1.0 / count)
        np.matmul(u.T, p, out=grads["output"])
        p.sum(0, out=grads["output_bias"])
        du = np.matmul(p, parts["output"].T, out=self._buffers["du"][:count])
        np.matmul(h.T, du, out=grads["dense"])
        du.sum(0, out=grads["dense_bias"])
        dh = np.matmul(du, parts["dense"].T, out=self._buffers["dh"][:count])
        lstm_backward(z, parts["recurrent"], batch.starts, tanh_c, c, dh)
        np.matmul(x.T, z, out=grads["input"])
        np.matmul(before.T, z, out=grads["recurrent"])
        z.sum(0, out=grads["gates"])
        dx = np.matmul(z, parts["input"].T, out=self._buffers["dx"][:count])
        grads["embedding"][...] = 0.0
        grads["embedding"][batch.ids] = np.add.reduceat(dx[batch.order], batch.firsts, axis=0)
        return loss

    def accuracy(self, theta: Floats, batch: Packed) -> tuple[int, int]:
        """Return the numbers of correctly predicted words and of words, without end and unknown.

        The prediction is the most likely word of the vocabulary: a keyboard suggests neither an
        unknown word nor the end.
        """
        parts = self.sizes.arrays(theta)
        h = self._states(parts, batch)[2]
        words = batch.targets > UNKNOWN
        _, p = self._outputs(parts, h[words])
        first = UNKNOWN + 1
        right = p[:, first:].argmax(1) + first == batch.targets[words]
        return int(right.sum()), len(right)

    def _states(self, parts: dict[str, Floats], batch: Packed) -> tuple[Floats, ...]:
        """Return embedded inputs, gates, and the results of the recurrence."""
        count = len(batch.inputs)
        if count > self._places:
            raise ValueError(f"expected at most {self._places} places, got {count}")
        x = np.take(
            parts["embedding"], batch.inputs, axis=0, out=self._buffers["x"][:count], mode="clip"
        )
        z = np.matmul(x, parts["input"], out=self._buffers["z"][:count])
        z += parts["gates"]
        return x, z, *lstm_forward(z, parts["recurrent"], batch.starts)

    def _outputs(self, parts: dict[str, Floats], h: Floats) -> tuple[Floats, Floats]:
        """Return outputs of the first dense layer, and probabilities of all tokens."""
        count = len(h)
        u = np.matmul(h, parts["dense"], out=self._buffers["u"][:count])
        u += parts["dense_bias"]
        p = np.matmul(u, parts["output"], out=self._buffers["p"][:count])
        p += parts["output_bias"]
        p -= p.max(1, keepdims=True)
        np.exp(p, out=p)
        p /= p.sum(1, keepdims=True)
        return u, p
