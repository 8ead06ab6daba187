# SPDX-License-Identifier: Apache-2.0
"""Server updates: the next model from the noised sums of the clients' updates.

With s_t the sum of all clipped updates of rounds 1..t, n_t its noise and B the report goal, the
input after round t is (s_t + n_t)/B (`FTRLUpdate`), or its change in the round, which is the
round's noised mean update (`AdamUpdate`). An update is a client's model after training minus the
model that it was sent: it points in the direction of descent, so it is added with a plus sign.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import flag, positive, real

Vector = NDArray[np.float64]


class ServerUpdate(Protocol):
    """Computes the next model from the noised value of a round."""

    @property
    def release(self) -> Literal["sum", "residual"]:
        """Input of `step`: the noised sum of all rounds so far, or its change in this round."""
        ...

    @property
    def theta(self) -> Vector:
        """The current model, float64."""
        ...

    def step(self, value: Vector) -> None:
        """Take a step."""
        ...

    def options(self) -> dict[str, Any]:
        """Return the settings, JSON-able."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return all that changes from step to step."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state of the same settings."""
        ...


class _Update:
    """The common part of the server updates."""

    _theta: Vector

    @property
    def theta(self) -> Vector:
        """The current model; to be read only."""
        return self._theta


class FTRLUpdate(_Update):
    """FTRL with momentum on sums: theta_t = theta_0 + rate v_t, v_t = gamma v_(t-1) + x_t.

    Here x_t is (s_t + n_t)/B. Kairouz et al. 2021, algorithm 1 and its momentum variant (DP-FTRLM),
    with updates in place of gradients.

    Parameters
    ----------
    theta_0 : (size,) array of float64
        The model before the first round; kept.
    learning_rate : float
        Greater than 0.
    momentum : float
        gamma, in [0, 1).
    nesterov : bool
        theta_t = theta_0 + rate (x_t + gamma v_t).

    Examples
    --------
    >>> update = FTRLUpdate(np.zeros(1), learning_rate=1.0, momentum=0.5)
    >>> for value in (1.0, 3.0):
    ...     update.step(np.array([value]))
    >>> update.theta.tolist()
    [3.5]
    """

    release: ClassVar[Literal["sum", "residual"]] = "sum"

    def __init__(
        self,
        theta_0: Vector,
        learning_rate: float,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        self._rate = positive("learning_rate", learning_rate)
        self._momentum = real("momentum", momentum, least=0.0, below=1.0)
        nesterov = flag("nesterov", nesterov)
        if nesterov and not self._momentum > 0.0:
            raise ValueError("nesterov must come with a momentum greater than 0, got momentum 0")
        self._nesterov = nesterov
        self._theta_0 = theta_0
        self._theta = theta_0.copy()
        self._velocity = np.zeros_like(theta_0) if self._momentum > 0.0 else None

    def step(self, value: Vector) -> None:
        """Take a step with x_t, the noised sum of all rounds so far over the goal."""
        theta, velocity = self._theta, self._velocity
        with np.errstate(all="ignore"):  # a warning would reveal something about a value
            if velocity is None:
                np.multiply(value, self._rate, out=theta)
            else:
                velocity *= self._momentum
                velocity += value
                if self._nesterov:
                    np.multiply(velocity, self._momentum, out=theta)
                    theta += value
                    theta *= self._rate
                else:
                    np.multiply(velocity, self._rate, out=theta)
            theta += self._theta_0

    def options(self) -> dict[str, Any]:
        """Return the settings."""
        return {
            "optimizer": "ftrl",
            "learning_rate": self._rate,
            "momentum": self._momentum,
            "nesterov": self._nesterov,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the vectors themselves, no copies."""
        return {"theta_0": self._theta_0, "theta": self._theta, "velocity": self._velocity}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the vectors of a state of the same settings."""
        self._theta_0, self._theta = state["theta_0"], state["theta"]
        self._velocity = state["velocity"]


class AdamUpdate(_Update):
    """Adam on the noised mean update g_t of each round.

        m_t = b1 m_(t-1) + (1 - b1) g_t,    v_t = b2 v_(t-1) + (1 - b2) g_t^2
        theta_t = theta_(t-1) + rate_t m_t / (sqrt(v_t) + eps)
        rate_t = rate sqrt(1 - b2^(t+1)) / (1 - b1^(t+1))

    with m_0 = v_0 = 0; the exponent t + 1 is that of Flower's FedAdam, whose steps these are. The
    source is Reddi et al. 2021, "Adaptive Federated Optimization", algorithm 2, where rate_t is
    constant. v_t includes the square of the noise: where noise dominates, all coordinates move
    alike.

    Parameters
    ----------
    theta_0 : (size,) array of float64
        The model before the first round; kept.
    learning_rate : float
        Greater than 0.
    betas : pair of float
        b1 and b2, each in [0, 1).
    eps : float
        Greater than 0.

    Examples
    --------
    >>> update = AdamUpdate(np.zeros(2), learning_rate=0.1)
    >>> update.step(np.array([1.0, -2.0]))
    >>> update.theta.round(3).tolist()
    [0.074, -0.074]
    """

    release: ClassVar[Literal["sum", "residual"]] = "residual"

    def __init__(
        self,
        theta_0: Vector,
        learning_rate: float,
        *,
        betas: Sequence[float] = (0.9, 0.99),
        eps: float = 1e-3,
    ) -> None:
        self._rate = positive("learning_rate", learning_rate)
        pair: Any = betas
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise TypeError(f"betas must be a pair of numbers, got {pair!r}")
        first, second = (real("each of betas", beta, least=0.0, below=1.0) for beta in pair)
        self._betas = first, second
        self._eps = positive("eps", eps)
        self._theta = theta_0.copy()
        self._mean, self._square = np.zeros_like(theta_0), np.zeros_like(theta_0)
        self._t = 0

    def step(self, value: Vector) -> None:
        """Take a step with g_t, the noised mean update of the round."""
        (b1, b2), power = self._betas, self._t + 2
        rate = self._rate * math.sqrt(1.0 - b2**power) / (1.0 - b1**power)
        with np.errstate(all="ignore"):  # a warning would reveal something about a value
            self._mean *= b1
            self._mean += (1.0 - b1) * value
            self._square *= b2
            self._square += (1.0 - b2) * (value * value)
            self._theta += rate * self._mean / (np.sqrt(self._square) + self._eps)
        self._t += 1

    def options(self) -> dict[str, Any]:
        """Return the settings."""
        return {
            "optimizer": "adam",
            "learning_rate": self._rate,
            "betas": list(self._betas),
            "eps": self._eps,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the vectors themselves, no copies, and the number of steps."""
        return {"theta": self._theta, "mean": self._mean, "square": self._square, "t": self._t}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the vectors of a state of the same settings."""
        self._theta, self._mean, self._square = state["theta"], state["mean"], state["square"]
        self._t = state["t"]
