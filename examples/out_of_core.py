# SPDX-License-Identifier: Apache-2.0
"""Fit a private model from a folder of Parquet files, read in small parts.

`python examples/out_of_core.py` needs scikit-learn and pyarrow.
"""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpftrl_fast.linear_model import DPFTRLRegressor

FILES, ROWS = 4, 5_000


def main() -> None:
    """Write rows to files, and fit them from the files and from memory."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (FILES * ROWS, 3))
    y = X @ [0.5, -0.3, 0.0]
    # A seed makes the two comparable; a model to be published has none.
    model = DPFTRLRegressor(epsilon=1.0, x_norm_bound=3**0.5, y_bound=1.0, noise_seed=1)
    with tempfile.TemporaryDirectory() as folder:
        for i in range(FILES):
            part = slice(i * ROWS, (i + 1) * ROWS)
            columns = {"a": X[part, 0], "b": X[part, 1], "c": X[part, 2], "target": y[part]}
            pq.write_table(pa.table(columns), Path(folder, f"part-{i}.parquet"))
        coefficients = model.fit(folder, y="target").coef_
    same = np.array_equal(coefficients, model.fit(X, y).coef_)
    print("the model of the rows in memory:", same)


if __name__ == "__main__":
    main()
