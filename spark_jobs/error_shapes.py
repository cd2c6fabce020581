"""Error shapes: what is the same in the texts of errors that differ in numbers, names and times."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as f

SHAPE_MAX = 200
_TEXT_MAX = 500
"""Of a text, so that no pattern takes long."""

REPLACED = (
    (r"\b[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>]+", "<url>"),
    (r"[A-Za-z0-9_.+-]+@[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)+", "<email>"),
    (r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b", "<uuid>"),
    (
        r"\b[0-9]{4}-[0-9]{2}-[0-9]{2}"
        r"(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]+)?)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?)?",
        "<time>",
    ),
    (r"\"[^\"]*\"|`[^`]*`|(?<![A-Za-z0-9])'[^']*'(?![A-Za-z0-9])", "<text>"),
    (
        r"\b(?:0[xX][0-9a-fA-F]+"
        r"|(?=[a-fA-F]*[0-9])(?=[0-9]*[a-fA-F])[0-9a-fA-F]{8,})\b",
        "<hex>",
    ),
    (r"(?<![A-Za-z0-9])[0-9]+(?:[.,:][0-9]+)*|[0-9]{3,}", "<n>"),
    (r"\s+", " "),
)
"""Patterns and what stands for them, in this order. Java and Python read them alike."""

MESSAGES = (
    "errormessage",
    "exceptionmessage",
    "error",
    "exception",
    "failurereason",
    "stacktrace",
    "cause",
)
"""Names of attributes and body fields that have an error's text, first those that say most; see `plain`."""
CODES = ("errorcode", "errortype", "exceptiontype")
"""Names of those that have its code, which is kept as it is."""
_LAST_RESORT = "message"
"""A body field with this name often has something else, so it counts only if nothing better is there."""

NO_ERROR = "(no error text)"
SEALED = "(sealed)"


def plain(name: Column) -> Column:
    """A name without case, and without what separates its words."""
    return f.lower(f.regexp_replace(name, "[^A-Za-z0-9]", ""))


def error_shape(attributes: Column, fields: Column) -> Column:
    """The shape of the error that message attributes, or else the fields of a JSON body (both {name: text}) tell of."""
    texts = [_named(attributes, name) for name in MESSAGES]
    texts += [_inner(_named(fields, name)) for name in (*MESSAGES, _LAST_RESORT)]
    codes = [_named(values, name) for values in (attributes, fields) for name in CODES]
    shapes = shape(f.coalesce(*texts))
    return f.coalesce(shapes, f.left(f.coalesce(*codes), f.lit(SHAPE_MAX)), f.lit(NO_ERROR))


def shape(text: Column) -> Column:
    """The text's telling line with placeholders; null where it is empty."""
    trimmed = f.trim(text)
    lines = f.split(trimmed, r"[\r\n]+")
    is_python = trimmed.startswith("Traceback (most recent call last)")
    line = f.when(is_python, f.element_at(lines, -1)).otherwise(f.element_at(lines, 1))
    replaced = reduce(
        lambda so_far, each: f.regexp_replace(so_far, f.lit(each[0]), f.lit(each[1])),
        REPLACED,
        f.left(line, f.lit(_TEXT_MAX)),
    )
    return f.nullif(f.trim(f.left(replaced, f.lit(SHAPE_MAX))), f.lit(""))


def _named(values: Column, name: str) -> Column:
    """The value of that name, null where there is none."""
    found = f.filter(f.map_entries(values), lambda entry: plain(entry["key"]) == name)
    return f.nullif(f.trim(f.get(found, f.lit(0))["value"]), f.lit(""))


def _inner(value: Column) -> Column:
    """What an object says of itself; null for other structures."""
    told = f.coalesce(
        *(f.get_json_object(value, f"$.{name}") for name in ("message", "errorMessage", "type"))
    )
    return f.when(value.startswith("{"), told).when(~value.startswith("["), value)
