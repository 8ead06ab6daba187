# SPDX-License-Identifier: Apache-2.0
"""Fit a stream of rows that outlives its process: kept in a folder, continued after a crash.

python examples/kept_stream.py FOLDER      # start it again after a crash

Without a folder it starts itself twice with a temporary one, and the first process is killed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from dpftrl_fast.linear_model import DPFTRLLeastSquares

ROWS, DAY = 20_000, 700  # declared, and rows of a day


def rows_of(start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Return some rows of the stream; a program would read them from where they are kept."""
    X = np.random.default_rng(0).uniform(-1, 1, (ROWS, 3))
    return X[start:stop], (X @ [0.5, -0.3, 0.1])[start:stop]


def main(folder: str, kill_at: int | None) -> None:
    """Take the stream from where it is to its end."""
    model = DPFTRLLeastSquares(
        epsilon=1.0, delta=1e-6, x_norm_bound=3**0.5, y_bound=1.0, batch_size=500, horizon=ROWS
    )
    with model.keep_stream(folder) as stream:
        print(f"process {os.getpid()} continues with row {stream.position} of {ROWS}", flush=True)
        for start in range(stream.position, ROWS, DAY):
            model.partial_fit(*rows_of(start, start + DAY))
            if kill_at is not None and start >= kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
    print("coefficients", model.coef_.round(1).tolist())
    print(model.plan_.describe(model.delta_))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", help="of the stream, a secret: it holds the noise key")
    parser.add_argument("--kill-at", type=int, metavar="ROW")
    arguments = parser.parse_args()
    if arguments.folder is not None:
        main(arguments.folder, arguments.kill_at)
    else:
        with tempfile.TemporaryDirectory() as parent:
            place = str(Path(parent, "stream"))
            subprocess.run([sys.executable, __file__, place, "--kill-at", "9000"])
            main(place, None)
