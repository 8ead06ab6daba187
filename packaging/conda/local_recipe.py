# SPDX-License-Identifier: Apache-2.0
"""Write a copy of the conda recipe that builds this clone instead of a release.

python packaging/conda/local_recipe.py build/conda
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main(folder: Path) -> None:
    """Replace the source's address and hash by the path of the clone."""
    recipe = (HERE / "recipe.yaml").read_text("utf-8")
    local = f"source:\n  path: {HERE.parents[1]}\n"
    changed, count = re.subn(r"source:\n  url: .*\n  sha256: .*\n", local, recipe)
    if count != 1:
        sys.exit("expected one source with url and sha256 in recipe.yaml")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(changed, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
