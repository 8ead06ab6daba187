# SPDX-License-Identifier: Apache-2.0
"""Train a classifier in JAX: clipped sums, the noise of a plan in Optax, a saved and resumed run.

`python examples/jax_run.py`
"""

import math
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpftrl_fast as dpf
from dpftrl_fast.jax import clipped_grad
from dpftrl_fast.optax import residual_noise

ROWS, FEATURES, CLASSES, BATCH, EPOCHS, DELTA = 20_000, 20, 3, 250, 2, 1e-6
STEPS = ROWS // BATCH


def up(epsilon: float) -> str:
    """Return an epsilon with two decimals, rounded up."""
    return f"{math.ceil(100 * epsilon) / 100:.2f}"


# Made-up data, in a fixed order: each epoch has the same batches.
rng = np.random.default_rng(0)
X = rng.standard_normal((ROWS, FEATURES)).astype(np.float32)
y = np.argmax(X @ rng.standard_normal((FEATURES, CLASSES)), axis=1)

plan = dpf.PrivacyPlan.calibrate(
    epsilon=4.0,
    delta=DELTA,
    clip_norm=1.0,
    participation=dpf.accounting.FixedEpochs(steps_per_epoch=STEPS, epochs=EPOCHS),
)


def loss(params, batch):
    """Return the loss of one example, which has a first axis of length 1."""
    x, label = batch
    hidden = jnp.tanh(x @ params["w"] + params["b"])
    scores = hidden @ params["v"]
    return optax.softmax_cross_entropy_with_integer_labels(scores, label).mean()


def new_run():
    """Return the noise, the optimiser and a compiled step."""
    noise = residual_noise(plan, batch_size=BATCH)
    optimizer = optax.chain(noise, optax.adam(0.02))
    clipped = clipped_grad(loss, clip_norm=plan.clip_norm, microbatch_size=50)

    def step(params, state, batch):
        updates, state = optimizer.update(clipped(params, batch), state, params)
        return optax.apply_updates(params, updates), state

    # The buffers of parameters and state are given to the next step.
    return noise, optimizer, jax.jit(step, donate_argnums=(0, 1))


def batches(first, last):
    """Yield the ids and rows of steps."""
    for t in range(first, last):
        ids = np.arange(BATCH) + t % STEPS * BATCH
        yield ids, (X[ids], y[ids])


noise, optimizer, step = new_run()
keys = jax.random.split(jax.random.key(0), 2)  # of the first parameters, which are public
params = {
    "w": jax.random.normal(keys[0], (FEATURES, 16)) / 5,
    "b": jnp.zeros(16),
    "v": jax.random.normal(keys[1], (16, CLASSES)) / 4,
}
state = optimizer.init(params)
guard = plan.guard()
half = EPOCHS * STEPS // 2
for ids, batch in batches(0, half):
    guard.admit(ids)  # refuses an id beyond its declared participation, before its step
    params, state = step(params, state, batch)

with TemporaryDirectory() as folder:
    # A checkpoint: parameters and state are public, the noise is a secret (mode 0600).
    leaves, tree = jax.tree.flatten((params, state))
    np.savez(Path(folder, "public.npz"), *leaves)
    noise.save(Path(folder, "noise.secret"))

    # Another process begins here.
    noise, optimizer, step = new_run()
    optimizer.init(params)
    noise.load(Path(folder, "noise.secret"))
    with np.load(Path(folder, "public.npz")) as file:
        restored = [jnp.asarray(file[name]) for name in file.files]
    params, state = jax.tree.unflatten(tree, restored)

for ids, batch in batches(half, EPOCHS * STEPS):
    guard.admit(ids)
    params, state = step(params, state, batch)

scores = jnp.tanh(X @ params["w"] + params["b"]) @ params["v"]
accuracy = float((scores.argmax(axis=1) == y).mean())
replaced = plan.epsilon(DELTA, neighbours="replace-one")
print(f"{noise.steps_taken} steps, epsilon {up(plan.epsilon(DELTA))} at delta {DELTA:g}", end=" ")
print(f"(replace-one {up(replaced)})")
print(f"accuracy {accuracy:.2f} on the training data: not private, here on made-up rows")
