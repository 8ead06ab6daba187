# SPDX-License-Identifier: Apache-2.0
"""Private linear models as scikit-learn estimators; scikit-learn is the extra ``sklearn``.

`DPFTRLRegressor` and `DPFTRLClassifier` follow the regularised leader on a noisy sum,
`DPFTRLLeastSquares` solves noisy normal equations on two. `from_schema` puts a scaler in front.
"""

try:
    import sklearn  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "dpftrl_fast.linear_model needs scikit-learn: pip install 'dpftrl-fast[sklearn]'",
        name=error.name,
    ) from error

from dpftrl_fast.linear_model.classifier import DPFTRLClassifier
from dpftrl_fast.linear_model.least_squares import DPFTRLLeastSquares
from dpftrl_fast.linear_model.pipeline import from_schema
from dpftrl_fast.linear_model.regressor import DPFTRLRegressor

__all__ = ["DPFTRLClassifier", "DPFTRLLeastSquares", "DPFTRLRegressor", "from_schema"]
