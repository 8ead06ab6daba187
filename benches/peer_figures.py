# SPDX-License-Identifier: Apache-2.0
"""Figures of other libraries for `bench_peers`, in an interpreter that has them.

``python peer_figures.py FIGURE`` prints those of the libraries that it can import, as JSON. Nothing
of this package is imported, so that each library may have an environment of its own.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import numpy as np

#: Distribution of each library, and the module that a program imports.
PEERS = {
    "opacus": "opacus",
    "jax_privacy": "jax_privacy",
    "tensorflow-privacy": "tensorflow_privacy",
    "diffprivlib": "diffprivlib",
    "opendp": "opendp.prelude",
    "dp-accounting": "dp_accounting",
}
SINGLE = (1600, 1.13, 1e-6)  # steps, noise multiplier, delta: a table of the DP-FTRL paper
RESTARTS = (100, 100, 6.91, 1e-5)  # epochs, steps of each, noise multiplier, delta
SEPARATION = (1024, 8, 64)  # steps, participations, separation
BUFFERS = ((0.99, 0.9, 0.5), (0.1, 0.1, 0.2))  # decay and scale of C
BUFFERS_SEPARATION = (2000, 20, 100)
STREAM = (1000, 1.0, 1e-6)  # steps, epsilon, delta
ORDERS = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))

Rows = list[dict[str, Any]]


@contextmanager
def double_precision() -> Iterator[None]:
    """Let JAX compute in double precision."""
    import jax

    with jax.enable_x64(True):
        yield


def opendp() -> Any:
    """Return OpenDP's prelude, with the parts that are still under review."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    return dp


def timed(peer: str, case: str, call: Callable[[], float], **more: Any) -> dict[str, Any]:
    """Return the value of a call and its time on the processor."""
    begin = time.process_time()
    value = float(call())
    return {"peer": peer, "case": case, "value": value, "s": time.process_time() - begin, **more}


# Epsilon, or the squared sensitivity, of the same pattern.


def accounts_tensorflow_privacy() -> Rows:
    import tensorflow_privacy as tfp
    from dp_accounting import rdp

    steps, sigma, delta = SINGLE
    epochs, each, sigma_2, delta_2 = RESTARTS
    total, most, separation = SEPARATION

    def epsilon(values: Any, target: float) -> float:
        return float(rdp.compute_epsilon(ORDERS, values, target)[0])

    name = "tensorflow-privacy"
    return [
        timed(
            name, "single",
            lambda: epsilon(tfp.compute_rdp_single_tree(sigma, steps, 1, 0, ORDERS), delta),
        ),
        timed(
            name, "restarts",
            lambda: epsilon(
                tfp.compute_rdp_tree_restart(sigma_2, [each] * epochs, ORDERS), delta_2
            ),
        ),
        timed(
            name, "separation",
            # rho = zeta / 2 at noise multiplier 1; its separation counts the steps between
            lambda: 2 * tfp.compute_zcdp_single_tree(1.0, total, most, separation - 1),
        ),
    ]  # fmt: skip


def accounts_dp_accounting() -> Rows:
    import dp_accounting as da
    from dp_accounting import pld, rdp

    steps, sigma, delta = SINGLE
    epochs, each, sigma_2, delta_2 = RESTARTS
    tree = da.SingleEpochTreeAggregationDpEvent
    relation = da.NeighboringRelation.REPLACE_SPECIAL
    name = "dp-accounting"

    def renyi(event: Any, target: float) -> float:
        accountant = rdp.RdpAccountant(neighboring_relation=relation)
        return float(accountant.compose(event).get_epsilon(target))

    def loss(zeta: float) -> float:
        event = da.GaussianDpEvent(sigma / zeta**0.5)
        return float(pld.PLDAccountant().compose(event).get_epsilon(delta))

    composed = da.SelfComposedDpEvent(tree(sigma_2, each), epochs)
    return [
        timed(name, "single", lambda: renyi(tree(sigma, steps), delta)),
        timed(name, "single, zeta given", lambda: loss(11.0)),
        timed(name, "restarts", lambda: renyi(composed, delta_2)),
    ]


def accounts_opacus() -> Rows:
    from opacus.accountants import PRVAccountant, RDPAccountant

    _, sigma, delta = SINGLE

    def of(accountant: Any) -> float:
        accountant.history = [(sigma, 1.0, 11)]  # eleven nodes, each a release without sampling
        return float(accountant.get_epsilon(delta=delta))

    return [
        timed("opacus", "single, zeta given", lambda: of(RDPAccountant()), how="RDP"),
        timed("opacus", "single, zeta given", lambda: of(PRVAccountant()), how="PRV"),
    ]


def accounts_opendp() -> Rows:
    dp = opendp()
    _, sigma, delta = SINGLE
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l2_distance(T=float)

    def epsilon() -> float:
        gaussian = dp.m.make_gaussian(*space, scale=sigma)
        approximate = dp.c.make_fix_delta(dp.c.make_zCDP_to_approxDP(gaussian), delta)
        return float(approximate.map(11**0.5)[0])

    return [timed("opendp", "single, zeta given", epsilon)]


def accounts_jax_privacy() -> Rows:
    from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz

    steps, most, separation = BUFFERS_SEPARATION

    def zeta() -> float:
        blt = buffered_toeplitz.BufferedToeplitz.build(*BUFFERS)
        return float(
            toeplitz.minsep_sensitivity_squared(
                blt.toeplitz_coefs(steps), separation, most, n=steps
            )
        )

    with double_precision():
        zeta()  # compiles
        return [timed("jax_privacy", "buffers", zeta)]


# Root mean square error of the running sums of a stream, one contribution a record.


def errors_tensorflow_privacy() -> Rows:
    import tensorflow as tf
    import tensorflow_privacy as tfp
    from dp_accounting import rdp

    steps, epsilon, delta = STREAM
    low, high = 1.0, 200.0
    for _ in range(60):
        sigma = (low + high) / 2
        values = tfp.compute_rdp_single_tree(sigma, steps, 1, 0, ORDERS)
        low, high = (
            (low, sigma) if rdp.compute_epsilon(ORDERS, values, delta)[0] < epsilon
            else (sigma, high)
        )  # fmt: skip
    make = tfp.tree_aggregation.GaussianNoiseGenerator(high, tf.TensorSpec([2000]), seed=1)
    tree = tfp.tree_aggregation.EfficientTreeAggregator(make)
    state, squares = tree.init_state(), []
    advance = tf.function(tree.get_cumsum_and_update)
    for _ in range(steps):
        noise, state = advance(state)
        squares.append(float(tf.reduce_mean(noise**2)))
    how = "tree (Honaker), measured on 2,000 coordinates"
    return [{"peer": "tensorflow-privacy", "how": how, "value": float(np.mean(squares)) ** 0.5}]


def errors_jax_privacy() -> Rows:
    from dp_accounting import GaussianDpEvent, calibrate_dp_mechanism, pld
    from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz

    steps, epsilon, delta = STREAM
    sigma = calibrate_dp_mechanism(pld.PLDAccountant, GaussianDpEvent, epsilon, delta)
    rows: Rows = []

    def add(how: str, zeta: Any, squared: Any) -> None:
        value = sigma * float(zeta) ** 0.5 * float(np.mean(np.asarray(squared))) ** 0.5
        rows.append({"peer": "jax_privacy", "how": how, "value": value})

    with double_precision():
        blt = buffered_toeplitz.optimize(n=steps, error="mean", min_buffers=3, max_buffers=3)
        coefs = blt.toeplitz_coefs(steps)
        how = f"BLT, {len(blt.buf_decay)} buffers"
        error = toeplitz.per_query_error(strategy_coef=coefs, n=steps)
        add(how, toeplitz.sensitivity_squared(coefs, steps), error)
        coefs = toeplitz.optimize_banded_toeplitz(steps, 100)
        error = toeplitz.per_query_error(strategy_coef=coefs, n=steps)
        add("bands, 100", toeplitz.sensitivity_squared(coefs, steps), error)
    return rows


def errors_opendp() -> Rows:
    dp = opendp()
    steps, epsilon, delta = STREAM
    counts = dp.vector_domain(dp.atom_domain(T=int))
    releases, rows = 100, []

    def tree(metric: Any, noise: Any) -> Any:
        return dp.t.make_b_ary_tree(counts, metric, leaf_count=steps, branching_factor=2) >> noise

    def laplace(scale: float) -> Any:
        return tree(dp.l1_distance(T=int), dp.m.then_laplace(scale=scale))

    def approximate(measurement: Any) -> Any:
        return dp.c.make_fix_delta(dp.c.make_zCDP_to_approxDP(measurement), delta)

    def gaussian(scale: float) -> Any:
        return approximate(tree(dp.l2_distance(T=int), dp.m.then_gaussian(scale=scale)))

    def independent(scale: float) -> Any:
        return approximate((counts, dp.l2_distance(T=float)) >> dp.m.then_gaussian(scale=scale))

    leaves = dp.t.make_consistent_b_ary_tree(2)
    for how, make, goal in (
        ("tree, Laplace, delta 0; all at the end", laplace, epsilon),
        ("tree, Gaussian; all at the end", gaussian, (epsilon, delta)),
        ("independent, Gaussian", independent, (epsilon, delta)),
    ):
        distance = 1.0 if make is independent else 1
        scale = dp.binary_search(
            lambda s, m=make, g=goal, d=distance: m(s).check(d, g), bounds=(0.1, 1e3)
        )
        measurement, squares = make(scale), []
        for _ in range(releases):
            found = [int(x) for x in measurement([0] * steps)]
            noise = np.cumsum(found if make is independent else leaves(found))
            squares.append(np.mean(noise**2))
        rows.append({"peer": "opendp", "how": how, "value": float(np.mean(squares)) ** 0.5})
    return rows


def errors_opacus() -> Rows:
    from opacus.accountants.utils import get_noise_multiplier

    steps, epsilon, delta = STREAM
    rows = []
    # Independent noise of each step adds up: the mean of t = 1..T is (T + 1) / 2.
    for how, rate, releases in (
        ("independent, one pass in a fixed order", 1.0, 1),
        ("independent, Poisson sampling, 1/1,000 a step", 1 / steps, steps),
    ):
        sigma = get_noise_multiplier(
            target_epsilon=epsilon, target_delta=delta, sample_rate=rate, steps=releases,
            accountant="prv",
        )  # fmt: skip
        rows.append({"peer": "opacus", "how": how, "value": sigma * ((steps + 1) / 2) ** 0.5})
    return rows


def errors_diffprivlib() -> Rows:
    from diffprivlib.mechanisms import GaussianAnalytic

    steps, epsilon, delta = STREAM
    mechanism = GaussianAnalytic(epsilon=epsilon, delta=delta, sensitivity=1.0, random_state=1)
    draws = [mechanism.randomise(0.0) for _ in range(20_000)]
    value = float(np.std(draws)) * ((steps + 1) / 2) ** 0.5
    return [
        {"peer": "diffprivlib", "how": "independent, one pass in a fixed order", "value": value}
    ]


# Processor time of the noise, in nanoseconds a coordinate.


def rate(call: Callable[[], Any], size: int, rounds: int) -> float:
    """Return the median over rounds, after one that is not counted."""
    call()
    found = []
    for _ in range(rounds):
        begin = time.process_time()
        call()
        found.append(time.process_time() - begin)
    return float(np.median(found)) / size * 1e9


def noise_opacus(size: int, rounds: int) -> Rows:
    import torch
    from opacus.optimizers.optimizer import _generate_noise

    like = torch.zeros(size)
    return [
        {
            "peer": "opacus",
            "how": how,
            "value": rate(lambda s=secure: _generate_noise(1.0, like, None, s), size, rounds),
        }
        for how, secure in (
            ("independent", False),
            ("independent, secure_mode's sum of four", True),
        )
    ]


def noise_jax_privacy(size: int, rounds: int) -> Rows:
    import jax
    from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz
    from jax_privacy.noise_addition import gaussian_privatizer, matrix_factorization_privatizer

    with double_precision():
        blt = buffered_toeplitz.BufferedToeplitz.build(*BUFFERS)
        found = np.asarray(blt.buf_decay), np.asarray(blt.output_scale)
    blt = buffered_toeplitz.BufferedToeplitz.build(*found, dtype=jax.numpy.float32)
    bands = toeplitz.inverse_as_streaming_matrix(jax.numpy.array([1.0, 0.5, 0.3, 0.2]))
    zeros, rows = jax.numpy.zeros(size), []
    for how, made in (
        ("independent", gaussian_privatizer(stddev=1.0, prng_key=1)),
        (
            "three buffers",
            matrix_factorization_privatizer(
                blt.inverse(skip_checks=True).as_streaming_matrix(), stddev=1.0, prng_key=1
            ),
        ),
        ("4 bands", matrix_factorization_privatizer(bands, stddev=1.0, prng_key=1)),
    ):
        update = jax.jit(made.update, donate_argnums=1)
        kept = [made.init(zeros)]

        def call(update: Any = update, kept: Any = kept) -> None:
            noisy, kept[0] = update(zeros, kept[0])
            jax.block_until_ready((noisy, kept[0]))

        rows.append({"peer": "jax_privacy", "how": how, "value": rate(call, size, rounds)})
    return rows


def noise_tensorflow_privacy(size: int, rounds: int) -> Rows:
    import tensorflow as tf
    import tensorflow_privacy as tfp

    make = tfp.tree_aggregation.GaussianNoiseGenerator(1.0, tf.TensorSpec([size]), seed=1)
    tree = tfp.tree_aggregation.EfficientTreeAggregator(make)
    kept = [tree.init_state()]
    advance = tf.function(tree.get_cumsum_and_update)

    def call() -> None:
        noise, kept[0] = advance(kept[0])
        float(noise[0])

    # Rounds of 32 steps, over which a tree's cost is even.
    value = rate(lambda: [call() for _ in range(32)], 32 * size, max(1, rounds // 4))
    return [{"peer": "tensorflow-privacy", "how": "Honaker tree", "value": value}]


def noise_opendp(size: int, rounds: int) -> Rows:
    dp = opendp()
    size = min(size, 10**4)  # exact samples of single numbers: the time is in proportion
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l2_distance(T=float)
    made, zeros = dp.m.make_gaussian(*space, scale=1.0), [0.0] * size
    value = rate(lambda: made(zeros), size, min(rounds, 3))
    return [{"peer": "opendp", "how": "independent, exact samples", "value": value}]


def noise_diffprivlib(size: int, rounds: int) -> Rows:
    from diffprivlib.mechanisms import GaussianAnalytic

    size = min(size, 10**4)  # a number a call
    made = GaussianAnalytic(epsilon=1.0, delta=1e-6, sensitivity=1.0)
    value = rate(lambda: [made.randomise(0.0) for _ in range(size)], size, min(rounds, 3))
    return [{"peer": "diffprivlib", "how": "independent, a number a call", "value": value}]


def versions() -> dict[str, str]:
    """Return the version of each library that is installed here."""
    found = {}
    for name in PEERS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def import_seconds(module: str, rounds: int) -> float:
    """Return the least processor time of a new interpreter with this module, less one without."""
    least = []
    for code in (f"import {module}", "pass"):
        seconds = []
        for _ in range(rounds):
            begin = os.times()
            command = [sys.executable, "-W", "ignore", "-c", code]
            subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
            end = os.times()
            spent = end.children_user + end.children_system
            seconds.append(spent - begin.children_user - begin.children_system)
        least.append(min(seconds))
    return least[0] - least[1]


def imports(rounds: int) -> Rows:
    """Return the time of importing each library that is installed here."""
    return [
        {"peer": name, "value": import_seconds(PEERS[name], rounds)}
        for name in versions()
        if importlib.util.find_spec(PEERS[name].partition(".")[0])
    ]


def collect(figure: str, *arguments: Any) -> Rows:
    """Return a figure of every library that can be imported here."""
    if figure == "versions":
        return [{"peer": name, "value": version} for name, version in versions().items()]
    if figure == "imports":
        return imports(*arguments)
    rows: Rows = []
    for name, module in PEERS.items():
        call = globals().get(f"{figure}_{name.replace('-', '_')}")
        try:
            importlib.import_module(module)
        except ImportError:
            continue
        if call is not None:
            rows += call(*arguments)
    return rows


def main() -> None:
    """Print one figure."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figure", choices=["versions", "accounts", "errors", "noise", "imports"])
    parser.add_argument("arguments", type=int, nargs="*")
    given = parser.parse_args()
    print(json.dumps(collect(given.figure, *given.arguments)))


if __name__ == "__main__":
    main()
