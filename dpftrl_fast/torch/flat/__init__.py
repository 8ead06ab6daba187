# SPDX-License-Identifier: Apache-2.0
"""Parameters as one flat vector: layout, noise and update."""
