"""The one-line reasons for refusing settings: `FILE:LINE: KEY: REASON; did you mean NAME?`.

A key is a path such as `queues.0.name`. The file and line are those of the configuration file, and
left out of settings that come from elsewhere.
"""

from __future__ import annotations

import tomllib
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from storage.lake.near_names import did_you_mean

_ALIKE = 0.75
"""Least likeness of a name that may have been meant, of 1."""
_STATEMENT_LINES_MAX = 100
"""Lines of a statement; the line is left out of refusals behind a longer one."""
_OUT_OF_BOUNDS = {
    "int_type",
    "int_parsing",
    "int_from_float",
    "greater_than_equal",
    "less_than_equal",
}


def reason_of(
    error: ValidationError,
    fields: Mapping[str, FieldInfo],
    tables: Mapping[str, type[BaseModel]],
) -> str:
    """Key and reason of the first fault. `fields` are all settings; `tables` are the models of
    those that are lists of tables, by name."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    text = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        table = next((tables[part] for part in reversed(path[:-1]) if part in tables), None)
        known = fields if table is None else table.model_fields
        text = "unknown setting" + perhaps_meant(path[-1], known)
    elif first["type"] in _OUT_OF_BOUNDS and path[0] in fields:
        text = _bounds(fields[path[0]])
    return f"{'.'.join(path)}: {text}"


def perhaps_meant(name: str, known: Iterable[str]) -> str:
    """The end of a refusal of an unknown name; empty without one that is alike."""
    return did_you_mean(get_close_matches(name, known, n=1, cutoff=_ALIKE))


def _bounds(field: FieldInfo) -> str:
    """The numbers that a setting may have."""
    low = next((bound.ge for bound in field.metadata if hasattr(bound, "ge")), 0)
    high = next((bound.le for bound in field.metadata if hasattr(bound, "le")), None)
    return f"must be a whole number from {low}{'' if high is None else f' to {high}'}"


# -- places ----------------------------------------------------------------------------------------


def placed(refusal: str, file: Path | None, elsewhere: Collection[str]) -> str:
    """A refusal that begins with a key, behind its file and line if the file has the key.
    `elsewhere`: settings that the file does not decide."""
    path = refusal.partition(":")[0].split(".")
    if file is None or path[0] in elsewhere:
        return refusal
    line = None
    with suppress(OSError, ValueError):
        line = line_of(file.read_text("utf-8"), path)
    return refusal if line is None else f"{file}:{line}: {refusal}"


def line_of(text: str, path: Sequence[str]) -> int | None:
    """The first line of the statement of a TOML text that makes a key, or what holds it; None if
    there is none. Raises ValueError for text that is not TOML."""
    whole = tomllib.loads(text)
    while path and not _has(whole, path):
        path = path[:-1]
    if not path:
        return None
    lines = text.split("\n")
    last = bisect_left(range(len(lines)), True, key=lambda end: _has(_begin(lines, end)[0], path))
    return _begin(lines, last - 1)[1] + 1


def _begin(lines: list[str], end: int) -> tuple[dict[str, Any], int]:
    """The content of the whole statements before this line, and the number of their lines."""
    for number in range(end, max(end - _STATEMENT_LINES_MAX, 0), -1):
        with suppress(ValueError):
            return tomllib.loads("\n".join([*lines[:number], ""])), number
    return {}, 0


def _has(found: Any, path: Sequence[str]) -> bool:
    for part in path:
        try:
            found = found[int(part) if isinstance(found, list) else part]
        except (LookupError, TypeError, ValueError):
            return False
    return True
