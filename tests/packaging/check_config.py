# SPDX-License-Identifier: Apache-2.0
"""Check pyproject.toml, the workflows and the wheels of a release: `make check-config`.

The schemas are those of validate-pyproject and check-jsonschema, so nothing is fetched.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
VERSIONS = ["cp310", "cp311", "cp312", "cp313", "cp314", "cp314t"]
WHEELS = {
    "linux": {
        f"{version}-{libc}_{processor}"
        for version in VERSIONS
        for libc in ("manylinux", "musllinux")
        for processor in ("x86_64", "aarch64")
    },
    "macos": {f"{version}-macosx_arm64" for version in VERSIONS}
    | {f"{version}-macosx_x86_64" for version in VERSIONS if not version.startswith("cp314")},
    "windows": {f"{version}-win_amd64" for version in VERSIONS},
}
#: Rights that a workflow may give, beyond reading the sources.
RIGHTS = {
    "docs.yml": {"pages: write", "id-token: write"},
    "release.yml": {"attestations: write", "id-token: write"},
}


def check_wheels() -> None:
    """Compare what cibuildwheel would build with the list above."""
    for platform, expected in WHEELS.items():
        command = [BIN / "cibuildwheel", "--platform", platform, "--print-build-identifiers", ROOT]
        got = set(subprocess.check_output(command, text=True).split())
        assert got == expected, f"{platform}: {sorted(got ^ expected)}"
    print(f"{sum(map(len, WHEELS.values()))} wheels in a release")


def check_workflows() -> None:
    """Check the schema of each workflow, its rights, and that its actions have a version."""
    folder = ROOT / ".github" / "workflows"
    paths = sorted(folder.glob("*.yml"))
    assert [p.name for p in paths] == ["docs.yml", "release.yml", "tests.yml", "wheels.yml"]
    schema = [BIN / "check-jsonschema", "--builtin-schema"]
    subprocess.run([*schema, "vendor.github-workflows", *paths], check=True)
    subprocess.run([*schema, "vendor.dependabot", ROOT / ".github" / "dependabot.yml"], check=True)
    for path in paths:
        text = path.read_text("utf-8")
        workflow: dict[str, Any] = yaml.safe_load(text)
        assert workflow["permissions"] == {"contents": "read"}, path.name
        given = set(re.findall(r"^ +((?!contents)[a-z-]+: write)$", text, re.M))
        assert given == RIGHTS.get(path.name, set()), f"{path.name}: {given}"
        for action in re.findall(r"uses: (\S+)", text):
            assert re.search(r"@(v\d|release/v\d|[0-9a-f]{40}$)|^\./", action), action
        for target in re.findall(r"\bmake ((?:[a-z-]+ ?)+)$", text, re.M):
            for name in target.split():
                assert f"\n{name}:" in (ROOT / "Makefile").read_text("utf-8"), name
        for job in workflow["jobs"].values():
            assert "timeout-minutes" in job or "uses" in job, path.name


def check_recipe() -> None:
    """Check that the conda recipe has the version and the requirements of pyproject.toml."""
    recipe = yaml.safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text("utf-8"))
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    version = re.search(r'^version = "(.+)"$', text, re.M)
    assert version is not None and recipe["context"]["version"] == version[1]
    needed = re.search(r"^dependencies = \[(.+)\]$", text, re.M)
    assert needed is not None
    run = {str(line).replace(" ", "") for line in recipe["requirements"]["run"]}
    assert set(re.findall(r'"(.+?)"', needed[1])) <= run, run
    build = re.search(r"^requires = \[(.+)\]$", text, re.M)
    assert build is not None
    names = {re.split(r"[ >=]", str(line))[0].lower() for line in recipe["requirements"]["host"]}
    assert {name.lower() for name in re.findall(r'"([\w-]+)', build[1])} <= names, names


def main() -> None:
    """Run all checks."""
    subprocess.run([BIN / "validate-pyproject", ROOT / "pyproject.toml"], check=True)
    check_wheels()
    check_workflows()
    check_recipe()


if __name__ == "__main__":
    main()
