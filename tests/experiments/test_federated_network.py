# SPDX-License-Identifier: Apache-2.0
"""The next-token network of the federated experiment, and what its clients send back."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from next_token_cases import SIZES, sequences, some_clients

from dpftrl_fast.experiments.federated.clients import Population
from dpftrl_fast.experiments.federated.network import (
    BEGIN,
    END,
    PAD,
    UNKNOWN,
    NextToken,
    Packed,
    Sizes,
)
from dpftrl_fast.experiments.federated.text import Clients

# ---- The network ----


def test_special_tokens_are_those_of_the_data():
    from dpftrl_fast.experiments.federated import text

    assert (PAD, BEGIN, END, UNKNOWN) == (text.PADDING, text.BEGIN, text.END, text.OTHER)


def test_parameters_follow_from_a_seed():
    first = SIZES.initial(1)
    assert first.size == SIZES.parameters and np.array_equal(first, SIZES.initial(1))
    assert not np.array_equal(first, SIZES.initial(2))
    arrays = SIZES.arrays(first)
    assert sum(array.size for array in arrays.values()) == first.size
    assert all(np.shares_memory(array, first) for array in arrays.values())
    assert arrays["gates"].tolist() == [0.0] * 8 + [1.0] * 8 + [0.0] * 16
    # embedding, four gates of the LSTM with biases, two dense layers with theirs
    v, e, h, d = 10_004, 96, 670, 96
    assert Sizes(v, e, h, d).parameters == (v * e + 4 * h * (e + h + 1) + (h + 1) * d + (d + 1) * v)


def by_torch(tokens, theta):
    """Loss and gradient in float64, sequence by sequence, by automatic derivatives."""
    torch = pytest.importorskip("torch")
    flat = torch.tensor(theta.astype(np.float64), requires_grad=True)
    parts, start = {}, 0
    for name, shape in SIZES.shapes.items():
        parts[name] = flat[start : start + math.prod(shape)].view(shape)
        start += math.prod(shape)
    losses = []
    for row in tokens.tolist():
        h = c = torch.zeros(SIZES.units, dtype=torch.float64)
        for token, following in pairwise(row):
            if following == PAD:
                break
            z = parts["embedding"][token] @ parts["input"] + h @ parts["recurrent"]
            i, f, o, g = (z + parts["gates"]).split(SIZES.units)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            u = h @ parts["dense"] + parts["dense_bias"]
            p = u @ parts["output"] + parts["output_bias"]
            losses.append(-torch.log_softmax(p, 0)[following])
    loss = torch.stack(losses).mean()
    loss.backward()
    return float(loss.detach()), flat.grad.numpy()


def test_the_gradient_is_that_of_automatic_derivatives():
    tokens, theta = sequences(5, seed=3), SIZES.initial(4)
    network, found = NextToken(SIZES, 100), np.empty(SIZES.parameters, np.float32)
    loss = network.gradient(theta, Packed.of(tokens), found)
    wanted_loss, wanted = by_torch(tokens, theta)
    assert loss == pytest.approx(wanted_loss, rel=1e-5)
    assert np.linalg.norm(found - wanted) < 2e-5 * np.linalg.norm(wanted)
    # padding is nothing, and the order of sequences does not matter
    longer = np.pad(tokens[::-1], ((0, 0), (0, 3)))
    again = np.empty_like(found)
    assert network.gradient(theta, Packed.of(longer), again) == pytest.approx(loss, rel=1e-6)
    np.testing.assert_allclose(again, found, atol=1e-6)


def test_accuracy_is_of_the_likeliest_word_over_known_words():
    theta = np.zeros(SIZES.parameters, np.float32)
    bias = SIZES.arrays(theta)["output_bias"]
    bias[[UNKNOWN, END, 9, 8]] = [5.0, 4.0, 3.0, 2.0]
    tokens = np.array(
        [[BEGIN, 9, UNKNOWN, 9, 8, END], [BEGIN, 8, END, PAD, PAD, PAD]], dtype=np.int32
    )
    assert NextToken(SIZES, 100).accuracy(theta, Packed.of(tokens)) == (2, 4)


def test_bad_batches_are_refused():
    network, theta = NextToken(SIZES, 10), SIZES.initial(0)
    with pytest.raises(ValueError, match="expected tokens to predict, got none"):
        Packed.of(np.array([[BEGIN, PAD]]))
    with pytest.raises(ValueError, match="expected at most 10 places, got"):
        network.gradient(theta, Packed.of(sequences(16)), theta.copy())


# ---- Clients ----


def test_an_update_is_one_epoch_of_steps_in_order():
    clients = some_clients(3)
    rows = clients.examples[1][:20]
    clients = Clients(clients.names, (clients.examples[0], rows), clients.test, 104)
    population, theta = Population(clients, SIZES, 18), SIZES.initial(0)
    before, own = theta.copy(), theta.astype(np.float64)
    found = population.update(1, theta, 0.5)
    for part in (rows[:16], rows[16:18]):
        own = own - 0.5 * by_torch(part, own.astype(np.float32))[1]
    assert np.array_equal(theta, before)
    np.testing.assert_allclose(found, own - theta, atol=3e-6)
    assert len(population) == 2 and 0.0 <= population.accuracy(theta) <= 1.0


def test_a_population_has_its_vocabulary_and_clients():
    with pytest.raises(ValueError, match="expected a vocabulary of 50, got 104"):
        Population(some_clients(2), Sizes(50, 8, 8, 8), 5)
    with pytest.raises(ValueError, match="expected clients, got none"):
        Population(Clients((), (), sequences(2), 104), SIZES, 5)
