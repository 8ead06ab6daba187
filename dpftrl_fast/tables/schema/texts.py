# SPDX-License-Identifier: Apache-2.0
"""Schema files: YAML or JSON, in which no entry stands twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpftrl_fast.tables.schema.entries import SchemaError


def read_data(path: Path) -> Any:
    """Return what a ``.json``, ``.yaml`` or ``.yml`` file holds, as plain data."""
    suffix = path.suffix.lower()
    if suffix not in (".json", ".yaml", ".yml"):
        raise SchemaError(f"a schema file ends in .yaml, .yml or .json, got {str(path)!r}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SchemaError(f"a schema is UTF-8 text, got other bytes in {str(path)!r}") from None
    return _from_json(text) if suffix == ".json" else _from_yaml(text)


def _from_json(text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                raise SchemaError(f"{key!r} stands twice in one mapping")
            seen[key] = value
        return seen

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise SchemaError(f"not valid JSON: {error}") from None


def _from_yaml(text: str) -> Any:
    import yaml

    class UniqueKeys(yaml.SafeLoader):
        """A safe loader that refuses a key given twice (YAML's default keeps the last)."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key_node, _ in node.value:
                key = str(self.construct_object(key_node, deep=True))
                if key in seen:
                    raise SchemaError(f"{key!r} stands twice in one mapping")
                seen.add(key)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader=UniqueKeys)
    except yaml.YAMLError as error:
        raise SchemaError(f"not valid YAML: {error}") from None
