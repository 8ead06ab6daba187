# SPDX-License-Identifier: Apache-2.0
"""Preparation of rows by public bounds; scikit-learn is the extra ``sklearn``.

`BoundedScaler` scales columns by declared bounds and never learns from the rows.
`private_quantiles` makes bounds from private rows, at a stated epsilon.
"""

try:
    import sklearn  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "dpftrl_fast.preprocessing needs scikit-learn: pip install 'dpftrl-fast[sklearn]'",
        name=error.name,
    ) from error

from dpftrl_fast.preprocessing.quantiles import PrivateQuantiles, private_quantiles
from dpftrl_fast.preprocessing.scaler import BoundedScaler

__all__ = ["BoundedScaler", "PrivateQuantiles", "private_quantiles"]
