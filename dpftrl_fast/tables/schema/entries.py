# SPDX-License-Identifier: Apache-2.0
"""Plain data of a schema file: reading it, and checks of its entries."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import dpftrl_fast._validate as _validate

T = TypeVar("T")


class SchemaError(ValueError):
    """An unusable schema; the message names the entry and the fault."""


def mapping(data: Any, where: str) -> Mapping[str, Any]:
    """Return a mapping whose keys are names."""
    if not isinstance(data, Mapping):
        raise SchemaError(f"{where} must be a mapping, got {type(data).__name__}")
    for key in data:
        if not isinstance(key, str) or not key:
            raise SchemaError(
                f"names in {where} must be text (quote them in YAML), got {_validate.shown(key)}"
            )
        for text in (key, data[key]):
            if isinstance(text, str):
                check_text(text, where)
    return data


def check_text(text: str, where: str) -> None:
    """Refuse text that no table holds: a surrogate on its own has no form in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise SchemaError(
            f"text in {where} must be valid Unicode, got {_validate.shown(text)}"
        ) from None


def known_keys(data: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    """Refuse unknown keys."""
    for key in data:
        if key not in known:
            raise SchemaError(f"unknown entry {key!r} in {where}; known: {', '.join(known)}")


def _checked(check: Callable[[str, Any], T], value: Any, where: str) -> T:
    try:
        return check(where, value)
    except (TypeError, ValueError) as error:
        hint = " (in YAML write 1.0e-6, not 1e-6)" if isinstance(value, str) else ""
        raise SchemaError(f"{error}{hint}") from None


def number(value: Any, where: str) -> float:
    """Return a finite number."""
    return _checked(_validate.real, value, where)


def positive(value: Any, where: str) -> float:
    """Return a finite number > 0."""
    return _checked(_validate.positive, value, where)


def count(value: Any, where: str) -> int:
    """Return a declared number of rows or users, 1 to 2^62."""
    found = _checked(_validate.positive_integer, value, where)
    if found > 2**62:
        raise SchemaError(f"{where} must be at most 2^62, got {_validate.shown(found)}")
    return found


def read_data(path: Path) -> Any:
    """Return the plain data of a ``.json``, ``.yaml`` or ``.yml`` file without duplicate keys."""
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
                raise SchemaError(f"{_validate.shown(key)} stands twice in one mapping")
            seen[key] = value
        return seen

    try:
        return json.loads(text, object_pairs_hook=unique)
    except SchemaError:
        raise
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"not valid JSON: {error}") from None


def _from_yaml(text: str) -> Any:
    import yaml

    class UniqueKeys(yaml.SafeLoader):
        """A safe loader that refuses duplicate keys (YAML's default keeps the last).

        Keys are scalars, and none is a merge: where an alias stands in a key or a merge, a short
        file describes a value without bound.
        """

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key_node, _ in node.value:
                if not isinstance(key_node, yaml.ScalarNode) or key_node.tag.endswith(":merge"):
                    raise SchemaError(
                        "keys must be plain text, got a list, a mapping or a merge (<<) as a key: "
                        "write the entries out"
                    )
                key = str(self.construct_object(key_node, deep=True))
                if key in seen:
                    raise SchemaError(f"{_validate.shown(key)} stands twice in one mapping")
                seen.add(key)
            return super().construct_mapping(node, deep)

    try:
        found = yaml.load(text, Loader=UniqueKeys)
    except SchemaError:
        raise
    except Exception as error:  # of the parser, and of its conversions of dates, numbers and keys
        raise SchemaError(f"not valid YAML: {error}") from None
    most = max(_MOST_VALUES, len(text))
    if not _written_out(found, {}) <= most:
        raise SchemaError(
            f"aliases must stand for at most {most:,} values in all, got more: write the entries "
            "out, or declare fewer"
        )
    return found


#: Values of a short YAML file with its aliases written out.
_MOST_VALUES = 10**6


def _written_out(value: Any, known: dict[int, float]) -> float:
    """Return the number of values in a nest, shared ones counted wherever they stand."""
    if not isinstance(value, (dict, list, tuple, set)):
        return 1
    if id(value) not in known:
        known[id(value)] = math.inf  # for a nest that holds itself
        items = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_written_out(item, known) for item in items)
    return known[id(value)]
