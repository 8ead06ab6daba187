# SPDX-License-Identifier: Apache-2.0
"""Checks of docs/frameworks/keras.md in one process of one backend; prints a line of JSON for each.

`KERAS_BACKEND=jax python keras_cases.py`: [name, "ok" or a traceback].
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from page_blocks import blocks

import dpftrl_fast as dpf
from dpftrl_fast import accounting as acc
from dpftrl_fast.mechanisms import Tree

BACKEND = os.environ["KERAS_BACKEND"]
SUMS, TENSORFLOW, JAX, RUN, KEEP = blocks("frameworks/keras")
STEPS, EPOCHS, BATCH, ROWS = 4, 3, 8, 30  # the last batch of an epoch has 6 rows
D = 5
names: dict[str, Any] = {"__name__": "page"}
CASES: dict[str, Callable[[], None]] = {}


def case(check: Callable[[], None]) -> Callable[[], None]:
    CASES[check.__name__] = check
    return check


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(ROWS, D)).astype(np.float32) * 3
    return x, (x[:, :1] > 0).astype(np.float32)


def batches(x: Any = None, y: Any = None, size: int = BATCH) -> Any:
    if x is None:
        x, y = data()
    return names["Batches"](x, y, np.arange(len(x)), size)


def plan_of(epochs: int = EPOCHS, **options: Any) -> dpf.PrivacyPlan:
    return dpf.PrivacyPlan(0.7, 2.0, acc.FixedEpochs(STEPS, epochs), **options)


def dense() -> Any:
    keras = names["keras"]
    return keras.Sequential([keras.Input((D,)), keras.layers.Dense(1)])


def model_of(
    plan: dpf.PrivacyPlan,
    *,
    network: Any = None,
    optimizer: Any = None,
    loss: str = "mse",
    seed: int | None = 5,
    **options: Any,
) -> Any:
    names["keras"].utils.set_random_seed(0)
    network = dense() if network is None else network
    for variable in network.trainable_variables:
        if variable.name == "kernel":
            start = np.linspace(-1, 1, math.prod(variable.shape), dtype=np.float32)
            variable.assign(start.reshape(variable.shape))
    model = names["Model"](network, plan, BATCH, noise_seed=seed)
    model.compile(optimizer or names["keras"].optimizers.SGD(0.3), loss, **options)
    return model


def fitted(model: Any, epochs: int = EPOCHS, **options: Any) -> np.ndarray:
    options = {"shuffle": False, "verbose": 0, **options}
    model.fit(batches(), epochs=epochs, **options)
    return weights(model)


def weights(model: Any) -> np.ndarray:
    return np.concatenate([np.ravel(w) for w in model.network.get_weights()])


def numpy_loop(plan: dpf.PrivacyPlan, epochs: int = EPOCHS, rate: float = 0.3) -> np.ndarray:
    """Least squares by hand: no library of gradients, another order of operations."""
    x, y = (part.astype(float) for part in data())
    noise = plan.noise(D + 1, seed=5)
    released = np.zeros(D + 1)
    theta = np.append(np.linspace(-1, 1, D), 0.0)
    total = np.zeros(D + 1)
    for _ in range(epochs):
        for start in range(0, ROWS, BATCH):
            rows = np.c_[x, np.ones(ROWS)][start : start + BATCH]
            slopes = 2 * (rows @ theta - y[start : start + BATCH, 0])
            gradients = slopes[:, None] * rows
            norms = np.sqrt((gradients**2).sum(axis=1))
            margin = 2**-10 if BACKEND == "jax" else 2**-20
            limit = plan.clip_norm * (1 - margin)
            total += (gradients * np.minimum(1, limit / norms)[:, None]).sum(axis=0)
            running = np.floor((total + noise.step()) / noise.grid + 0.5) * noise.grid
            theta -= rate * (running - released) / BATCH
            released = running
    return theta


def counts(model: Any, x: Any, y: Any) -> np.ndarray:
    if BACKEND == "jax":
        trainable = [v.value for v in model.trainable_variables]
        fixed = [v.value for v in model.non_trainable_variables]
        return np.asarray(model.clipped_counts(trainable, fixed, x, y))
    return np.asarray(model.clipped_counts(x, y))


def refused(call: Callable[[], object], words: str) -> None:
    try:
        call()
    except Exception as error:
        assert re.search(words, str(error)), str(error)
    else:
        raise AssertionError(f"nothing was refused: {words}")


# ---- Cases ----


@case
def the_page_runs() -> None:
    """As it stands, and trains."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(SUMS, "keras.md", "exec"), names)
        exec(compile(JAX if BACKEND == "jax" else TENSORFLOW, "keras.md", "exec"), names)
        exec(compile(RUN, "keras.md", "exec"), names)
        exec(compile(KEEP, "keras.md", "exec"), names)
    zero_out, replaced = map(float, re.findall(r"\d+\.\d+", said.getvalue()))
    assert 7.9 < zero_out <= 8.0 < replaced
    saved = names["keras"].saving.load_model("private.keras")
    accuracy = (saved.predict(names["x"], verbose=0).argmax(1) == names["y"]).mean()
    assert accuracy > 0.8, accuracy
    for path in [Path("private.keras")]:
        assert names["model"].sums.noise.state_dict()["key"] not in str(path.read_bytes())
    assert Path("run").stat().st_mode & 0o777 == 0o700


@case
def sgd_equals_the_numpy_loop() -> None:
    got, expected = fitted(model_of(plan_of())), numpy_loop(plan_of())
    assert np.abs(got - expected).max() < 1e-6, np.abs(got - expected).max()


@case
def so_it_does_with_a_mechanism_and_restarts() -> None:
    plan = plan_of(mechanism=Tree(restart_every=STEPS, complete=True))
    assert np.abs(fitted(model_of(plan)) - numpy_loop(plan)).max() < 1e-6


@case
def ways_to_run_it_give_the_same_bits() -> None:
    expected = fitted(model_of(plan_of()))
    for options in ({"steps_per_execution": 3}, {"run_eagerly": True}):
        got = fitted(model_of(plan_of(), **options))
        assert np.abs(got - expected).max() < 1e-6, options


@case
def each_step_has_noise_of_its_own() -> None:
    """With a rate of 1 and all gradients cut to zero, the weights are the sum of the noise."""
    plan = plan_of()
    model = model_of(plan, optimizer=names["keras"].optimizers.SGD(1.0))
    seen = [weights(model)]

    class See(names["keras"].callbacks.Callback):  # type: ignore[name-defined, misc]
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            if BACKEND == "jax":
                self.model.jax_state_sync()
            seen.append(weights(self.model))

    model.clipped_counts = lambda *a: names["keras"].ops.zeros(D + 1, "int32")
    fitted(model, callbacks=[See()])
    steps = -np.diff(seen, axis=0) * BATCH
    noise = plan.noise(D + 1, seed=5)
    sums = np.array([noise.step() for _ in range(STEPS * EPOCHS)])
    assert np.abs(np.cumsum(steps, axis=0) - sums).max() < noise.grid
    assert len(np.unique(steps.round(3), axis=0)) == STEPS * EPOCHS
    assert model.sums.noise.steps_taken == STEPS * EPOCHS


@case
def a_plain_call_in_a_graph_is_a_constant() -> None:
    """The trap that the page names: noise drawn while the step is traced, once."""
    noise = plan_of().noise(3, seed=1)
    if BACKEND == "jax":
        import jax

        step = jax.jit(lambda total: total + noise.residual())
    else:
        import tensorflow as tf

        step = tf.function(lambda total: total + noise.residual())
    zero = names["keras"].ops.zeros(3)
    first, second = np.asarray(step(zero)), np.asarray(step(zero))
    assert np.array_equal(first, second) and noise.steps_taken == 1


@case
def a_callback_without_state_is_dropped() -> None:
    """The second trap: a result that nothing reads; with `ordered` the step is taken."""
    if BACKEND == "jax":
        import jax
        from jax.experimental import io_callback

        noise, shape = plan_of().noise(3, seed=1), jax.ShapeDtypeStruct((3,), np.float32)
        jax.jit(lambda x: (jax.pure_callback(noise.residual, shape), x)[1])(1.0)
        assert noise.steps_taken == 0
        jax.jit(lambda x: (io_callback(noise.residual, shape, ordered=True), x)[1])(1.0)
        jax.effects_barrier()
        assert noise.steps_taken == 1
    else:
        import tensorflow as tf

        for stateful, steps in ((False, 0), (True, 1)):
            noise = plan_of().noise(3, seed=1)

            def step(x: Any, noise: Any = noise, stateful: bool = stateful) -> Any:
                tf.numpy_function(noise.residual, [], tf.float32, stateful=stateful)
                return x + 1

            tf.function(step)(tf.zeros(3))
            assert noise.steps_taken == steps, (stateful, noise.steps_taken)


@case
def one_row_changes_the_sum_by_at_most_the_clip_norm() -> None:
    model = model_of(plan_of())
    model.network.set_weights([np.ones((D, 1)), np.zeros(1)])
    x, y = data()
    x, y = x[:BATCH], y[:BATCH]
    worst = 0.0
    for scale in (1e-12, 1e-3, 1.0, 1e4, 1e15, math.nan, math.inf):
        one = x.copy()
        one[3] = scale * x[3]
        with_row = counts(model, one, y)
        without = counts(model, np.delete(one, 3, 0), np.delete(y, 3, 0))
        change = np.linalg.norm((with_row - without).astype(float)) * model.sums.unit
        assert change <= model.plan.clip_norm, (scale, change)
        if not math.isfinite(scale):
            assert change == 0.0
        worst = max(worst, change)
    assert worst > 0.998 * model.plan.clip_norm  # and is used


@case
def a_zero_gradient_is_zero() -> None:
    model = model_of(plan_of())
    x = np.zeros((2, D), np.float32)
    assert not counts(model, x, np.zeros((2, 1), np.float32)).any()


@case
def a_long_gradient_is_clipped_to_the_norm() -> None:
    """2^21 equal squares: a plain float32 sum of them would be wrong by much more."""
    keras = names["keras"]
    size = 2**21
    network = keras.Sequential([keras.Input((size,)), keras.layers.Dense(1, use_bias=False)])
    model = names["Model"](network, plan_of(), BATCH, noise_seed=5)
    model.compile("sgd", "mse")
    rows = np.full((1, size), 1.1, np.float32)
    got = counts(model, rows, np.full((1, 1), -1e3, np.float32)).astype(float) * model.sums.unit
    assert 0.99 < np.linalg.norm(got) / model.plan.clip_norm <= 1


@case
def folds_of_the_page_give_the_same_sum() -> None:
    text = (Path(__file__).parents[2] / "docs/frameworks/keras.md").read_text()
    block = JAX if BACKEND == "jax" else TENSORFLOW
    indented = re.findall(r"(?:^ {4}.*\n)+", text, re.MULTILINE)
    fold = next(x for x in indented if ("scan" if BACKEND == "jax" else "foldl") in x)
    last = re.search(r"^        return (tf.concat|jnp.concatenate)\(.*\n", block, re.MULTILINE)
    assert last is not None
    inner = "".join("    " + line + "\n" for line in fold.splitlines())
    space = dict(names)
    exec(compile(block.replace(last.group(0), inner), "keras.md", "exec"), space)
    x, y = data()
    model = model_of(plan_of())
    expected = counts(model, x[:BATCH], y[:BATCH])
    kind = space["JaxModel" if BACKEND == "jax" else "TensorFlowModel"]
    folded = kind(model.network, plan_of(), BATCH, noise_seed=5)
    folded.compile("sgd", "mse")
    assert expected.any() and np.abs(counts(folded, x[:BATCH], y[:BATCH]) - expected).max() <= 64


@case
def a_killed_run_resumes_bit_for_bit() -> None:
    keras = names["keras"]

    def start(folder: Path, epochs: int) -> tuple[np.ndarray, Any]:
        model = model_of(plan_of(), optimizer=keras.optimizers.Adam(0.1), seed=None)
        model.optimizer.build(model.network.trainable_variables)
        keep = names["KeepRun"](folder, model)
        kept.append(keep)
        fitted(model, epochs, initial_epoch=keep.epoch, callbacks=[keep])
        return weights(model), model

    kept: list[Any] = []
    folder = Path(tempfile.mkdtemp(), "run")
    begun = model_of(plan_of(), optimizer=keras.optimizers.Adam(0.1), seed=None)
    begun.optimizer.build(begun.network.trainable_variables)
    keep = names["KeepRun"](folder, begun)
    key = keep.sums.noise.state_dict()

    class Crash(keras.callbacks.Callback):  # type: ignore[name-defined, misc]
        taken = 0

        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            self.taken += 1
            if self.taken == STEPS + 2:  # two steps after the checkpoint
                raise KeyboardInterrupt

    try:
        fitted(begun, callbacks=[keep, Crash()])
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("the run was not killed")
    steps_before = begun.sums.noise.steps_taken
    keep.journal.close()
    assert steps_before >= STEPS + 2

    resumed, model = start(folder, EPOCHS)
    assert kept[0].epoch == EPOCHS and model.sums.noise.steps_taken == STEPS * EPOCHS
    kept[0].journal.close()

    whole = model_of(plan_of(), optimizer=keras.optimizers.Adam(0.1), seed=None)
    whole.sums.noise.load_state_dict(key)
    assert np.array_equal(fitted(whole), resumed)

    # Other data after the crash: refused before anything of the step leaves.
    other = Path(tempfile.mkdtemp(), "run")
    first = model_of(plan_of(), seed=None)
    first.optimizer.build(first.network.trainable_variables)
    keep = names["KeepRun"](other, first)
    crash = Crash()
    crash.taken = STEPS
    with contextlib.suppress(KeyboardInterrupt):
        fitted(first, callbacks=[keep, crash])
    keep.journal.close()
    second = model_of(plan_of(), seed=None)
    second.optimizer.build(second.network.trainable_variables)
    keep = names["KeepRun"](other, second)
    x, y = data()
    changed = batches(-x, y)
    refused(
        lambda: second.fit(changed, shuffle=False, verbose=0, callbacks=[keep]),
        "Diverged|other sum|differ",
    )
    keep.journal.close()


@case
def past_the_end_is_refused() -> None:
    model = model_of(plan_of())
    fitted(model)
    refused(lambda: fitted(model, 1), "declared|12")
    assert model.sums.noise.steps_taken == STEPS * EPOCHS


@case
def a_shuffled_epoch_is_refused() -> None:
    def shuffled() -> None:
        for _ in range(5):  # an order may come out unchanged
            fitted(model_of(plan_of()), shuffle=True)

    refused(shuffled, "epoch|id|place")


@case
def a_declared_new_order_is_taken() -> None:
    for plan in (
        plan_of(mechanism=Tree(restart_every=STEPS)),
        dpf.PrivacyPlan(0.7, 2.0, acc.MinSeparation(STEPS * EPOCHS, EPOCHS, 1)),
    ):
        model = model_of(plan)
        fitted(model, shuffle=True)
        assert model.sums.noise.steps_taken == STEPS * EPOCHS


@case
def a_batch_that_is_too_large_is_refused() -> None:
    model = model_of(plan_of())
    larger = batches(size=BATCH + 1)
    refused(lambda: model.fit(larger, shuffle=False, verbose=0), "at most 8 rows, got 9")
    assert model.sums.noise.steps_taken == 0


@case
def the_loss_of_training_is_not_reported() -> None:
    refused(lambda: model_of(plan_of(), metrics=["mae"]), "metrics must be left out")
    model, (x, y) = model_of(plan_of()), data()
    model.network.compile(loss="mse", metrics=["mae"])
    seen = []

    class Evaluate(names["keras"].callbacks.Callback):  # type: ignore[name-defined, misc]
        def on_epoch_end(self, epoch: int, logs: object = None) -> None:
            seen.append(self.model.network.evaluate(x, y, verbose=0))

    history = model.fit(
        batches(x, y),
        epochs=2,
        shuffle=False,
        verbose=0,
        validation_data=(x, y),
        callbacks=[Evaluate()],
    )
    assert set(history.history) - {"step"} == {"val_loss"}, history.history
    predicted = x.astype(float) @ model.network.get_weights()[0] + model.network.get_weights()[1]
    loss, error = ((predicted - y) ** 2).mean(), np.abs(predicted - y).mean()
    assert np.allclose([history.history["val_loss"][1], *seen[1]], [loss, loss, error], rtol=1e-4)
    assert seen[0] != seen[1]


@case
def refused_settings() -> None:
    keras = names["keras"]
    if BACKEND == "tensorflow":
        import tensorflow as tf

        refused(lambda: model_of(plan_of(), jit_compile=True), "jit_compile must be False")
        two = tf.config.list_logical_devices("CPU")
        strategy = tf.distribute.MirroredStrategy([device.name for device in two])
        assert strategy.num_replicas_in_sync == 2
        with strategy.scope():
            refused(lambda: model_of(plan_of()), "expected one replica")
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    refused(lambda: model_of(plan_of(), optimizer=scaled), "must not scale the loss")
    mixed = keras.dtype_policies.DTypePolicy("mixed_float16")
    keras.config.set_dtype_policy(mixed)
    try:
        refused(lambda: model_of(plan_of()), "must not scale the loss")
    finally:
        keras.config.set_dtype_policy("float32")
    if BACKEND == "jax":
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        try:
            refused(lambda: model_of(plan_of()), "expected one replica")
        finally:
            keras.distribution.set_distribution(None)


@case
def settings_of_optimizers_that_are_free() -> None:
    keras = names["keras"]
    for optimizer in (
        keras.optimizers.SGD(0.1, weight_decay=0.01, use_ema=True, momentum=0.9),
        keras.optimizers.AdamW(0.01, gradient_accumulation_steps=2),
        keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 4, 0.5)),
    ):
        model = model_of(plan_of(), optimizer=optimizer)
        assert np.isfinite(fitted(model)).all()
        assert model.sums.noise.steps_taken == STEPS * EPOCHS


@case
def half_precision() -> None:
    keras = names["keras"]
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        got = fitted(model_of(plan_of()))
    finally:
        keras.config.set_dtype_policy("float32")
    assert np.abs(got - numpy_loop(plan_of())).max() < 0.1


@case
def layers_of_the_table() -> None:
    """BatchNormalization keeps its statistics; dropout is off; frozen layers stay; images work."""
    keras = names["keras"]
    layers = keras.layers
    keras.utils.set_random_seed(0)
    network = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(3, 3),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.GroupNormalization(groups=3),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.9),
            layers.Dense(4),
            layers.Dense(1),
        ]
    )
    network.layers[-2].trainable = False
    fixed = [np.array(v) for v in network.non_trainable_weights]
    model = names["Model"](network, plan_of(), BATCH, noise_seed=5)
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(ROWS, 8, 8, 1)).astype(np.float32)
    y = np.zeros((ROWS, 1), np.float32)
    model.fit(batches(x, y), epochs=EPOCHS, shuffle=False, verbose=0)
    for before, after in zip(fixed, network.non_trainable_weights, strict=True):
        assert np.array_equal(before, np.array(after))
    # Each example alone: the sum is the sum of the sums of one row.
    both = counts(model, x[:2], y[:2])
    alone = sum(counts(model, x[i : i + 1], y[i : i + 1]) for i in range(2))
    scale = np.abs(both).max()
    assert scale > 0 and np.abs(both - alone).max() < 1e-4 * scale
    assert np.array_equal(counts(model, x[:2], y[:2]), both)  # no dropout


@case
def embeddings() -> None:
    keras = names["keras"]
    network = keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(10, 3),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(2),
        ]
    )
    model = names["Model"](network, plan_of(), BATCH, noise_seed=5)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    tokens = np.random.default_rng(0).integers(0, 10, (ROWS, 4)).astype(np.int32)
    labels = (tokens[:, 0] > 4).astype(np.int32)
    model.fit(batches(tokens, labels), shuffle=False, verbose=0)
    assert model.sums.noise.steps_taken == STEPS


@case
def tensorflow_block_of_any_framework() -> None:
    if BACKEND == "tensorflow":
        block = next(b for b in blocks("frameworks/any_framework") if "tensorflow" in b)
        space: dict[str, Any] = {}
        exec(compile(block, "any_framework.md", "exec"), space)
        variable, noise = space["variable"], space["noise"]
        assert np.array_equal(variable.numpy(), space["buffer"]) and space["buffer"].any()
        before = variable.numpy()
        noise.residual(out=variable.numpy())  # a copy, as the page says
        noise.residual(out=space["buffer"])
        assert np.array_equal(variable.numpy(), before)
        refused(lambda: noise.residual(out=variable), "got ResourceVariable")
        import tensorflow as tf

        refused(lambda: noise.residual(out=tf.zeros(6)), "got a read-only one")


def main() -> None:
    if BACKEND == "tensorflow":
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
    os.chdir(tempfile.mkdtemp())
    chosen = sys.argv[1:] or list(CASES)
    for name in dict.fromkeys(["the_page_runs", *chosen]):
        try:
            CASES[name]()
            result = "ok"
        except BaseException:
            result = traceback.format_exc()
        print(json.dumps([name, result]), flush=True)


if __name__ == "__main__":
    main()
