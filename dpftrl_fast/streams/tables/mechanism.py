# SPDX-License-Identifier: Apache-2.0
"""The mechanism of a table over time, from the figures that it is for."""

from __future__ import annotations

import numpy as np

from dpftrl_fast.accounting import Participation
from dpftrl_fast.accounting.planner.choice import MechanismChoice, chosen_mechanism
from dpftrl_fast.accounting.sensitivity.squared import squared_of
from dpftrl_fast.mechanisms import BufferedToeplitz, Identity, Mechanism, Tree
from dpftrl_fast.mechanisms.window_error import window_stds
from dpftrl_fast.streams.tables.settings import NO_END, CounterSettings, Figures


def mechanism_of(
    settings: CounterSettings, mechanism: MechanismChoice | None, epsilon: float, delta: float
) -> Mechanism:
    """Return the mechanism that was given, or for None the one for the figures of a table."""
    pattern = settings.participation
    if mechanism is None:
        return mechanism_for(settings.figures, settings.window, pattern, epsilon, delta)
    return chosen_mechanism(mechanism, pattern, epsilon, delta, bound="exact", dtype="float64")


def mechanism_for(
    figures: Figures, window: int | None, pattern: Participation, epsilon: float, delta: float
) -> Mechanism:
    """Return the mechanism for the figures that a table shows.

    Parameters
    ----------
    figures : {"running", "period", "window"}
        For running sums the best mechanism of all kinds, or from 2^20 periods on that of a stream
        without an end; for single periods independent noise; for
        windows, of these two, the best tree and trees that restart every 1, 2, 4 or 8 windows, the
        one with the least exact error: the root mean square over the periods.
    window : int or None
        Periods of a window.
    pattern : participation
        Who takes part when.
    epsilon, delta : float
        The budget. The order of mechanisms is the same for all budgets, but for rare cases.

    Examples
    --------
    >>> from dpftrl_fast.accounting import SinglePass
    >>> mechanism_for("period", None, SinglePass(365), 1.0, 1e-6)
    Identity(restart_every=None)
    >>> mechanism_for("window", 1, SinglePass(365), 1.0, 1e-6)
    Identity(restart_every=None)
    """
    if figures == "period":
        return Identity()
    if pattern.steps >= NO_END:
        running: Mechanism = BufferedToeplitz.unbounded()
        if window is None:
            return running
        return min((Identity(), running), key=lambda one: _error_of_windows(one, window, pattern))
    running = chosen_mechanism("auto", pattern, epsilon, delta, bound="exact")
    if window is None:
        return running
    candidates: list[Mechanism] = [Identity(), running, chosen_mechanism("tree", pattern, 1, 1e-6)]
    candidates += [
        Tree(restart_every=window * windows)
        for windows in (1, 2, 4, 8)
        if 1 < window * windows < pattern.steps
    ]
    return min(candidates, key=lambda one: _error_of_windows(one, window, pattern))


def _error_of_windows(mechanism: Mechanism, window: int, pattern: Participation) -> float:
    """Return the root mean square error of windows, for one budget, up to a constant."""
    layout = mechanism.layout(pattern.steps)
    zeta = float(squared_of(layout, pattern, "exact"))
    return float(np.sqrt(zeta * np.mean(window_stds(layout, window) ** 2)))
