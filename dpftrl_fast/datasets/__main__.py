# SPDX-License-Identifier: Apache-2.0
"""``python -m dpftrl_fast.datasets flights``."""

import sys

from dpftrl_fast.datasets.flights import main

sys.exit(main())
