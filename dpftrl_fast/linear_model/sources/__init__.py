# SPDX-License-Identifier: Apache-2.0
"""Rows of a fit: in memory, in frames, in Parquet files, with Dask."""
