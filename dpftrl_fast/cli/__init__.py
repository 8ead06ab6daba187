# SPDX-License-Identifier: Apache-2.0
"""The command ``dpftrl-fast``. Nothing else imports this package."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; name the extra to install if a package is missing."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError as error:
        print(
            f"dpftrl-fast: the command line needs the package {error.name!r}: "
            "pip install 'dpftrl-fast[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    from dpftrl_fast.cli.app import app

    app(prog_name="dpftrl-fast")
