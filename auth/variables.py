"""Policy variables: `${aws:username}` in a Resource or a condition's value. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_LITERALS = {"*": "\ue02a", "?": "\ue03f"}
"""Placeholders for literal wildcards in a filled text."""
_PLAIN = _LITERALS | {"$": "$"}

_TO_LITERALS = str.maketrans(_LITERALS)
_FROM_LITERALS = str.maketrans({stand_in: character for character, stand_in in _LITERALS.items()})

Fill = Callable[[str], str | None]
"""A text with its variables filled in; None if the request lacks one of them."""


def has_variable(text: str) -> bool:
    """True if the text contains a variable."""
    return "${" in text


def names(texts: Iterable[str]) -> list[str]:
    """The names of the texts' variables, in lower case."""
    return [
        inside.partition(",")[0].strip().lower()
        for text in texts
        for inside in _VARIABLE.findall(text)
    ]


def fill(text: str, keys: Mapping[str, tuple[str, ...]]) -> str | None:
    """Fill in variables from `keys` (by lower-case name); None if one is missing.

    `${key, 'text'}` has a default. Wildcards in a value are taken literally, and no other character
    matches them.
    """
    missing = False

    def value_of(match: re.Match[str]) -> str:
        nonlocal missing
        name, _, default = match[1].partition(",")
        name = name.strip()
        if name in _PLAIN:
            return _PLAIN[name]
        values = keys.get(name.lower(), ())
        if len(values) == 1:
            return values[0].translate(_TO_LITERALS)
        quoted = default.strip()
        if len(quoted) >= 2 and quoted[0] == quoted[-1] == "'":
            return quoted[1:-1]
        missing = True
        return ""

    filled = _VARIABLE.sub(value_of, text)
    return None if missing else filled


def plain(text: str) -> str:
    """A filled text without special characters."""
    return text.translate(_FROM_LITERALS)


def expression(text: str, any_run: str = ".*") -> str:
    """The regular expression of a filled text with the wildcards `*` and `?`; `any_run` is the
    expression for a star.

    The text between two stars matches at the first place where it fits and nowhere else: with
    backtracking, matching could take exponential time.
    """
    any_one = any_run.removesuffix("*")
    first, *others = (_between_stars(part, any_one) for part in re.split(r"\*+", text))
    if not others:
        return first
    *middle, last = others
    return "".join([first, *(f"(?>{any_run}?{part})" for part in middle), any_run, last])


def _between_stars(text: str, any_one: str) -> str:
    escaped = re.escape(text).replace(r"\?", any_one)
    for character, stand_in in _LITERALS.items():
        escaped = escaped.replace(stand_in, "\\" + character)
    return escaped
