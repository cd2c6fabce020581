"""Error shapes: what is the same in the texts of errors that differ in numbers, names and times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

_LINE = r"(?s)\A\s*(?:Traceback \(most recent call last\).*[\r\n]\s*)?([^\r\n]+)"
"""The line that tells most: the first, but of Python's tracebacks the last."""
_CODE_RANK = 100


def plain(name: Column) -> Column:
    """A name without case, and without what separates its words."""
    return f.lower(f.regexp_replace(name, "[^A-Za-z0-9]", ""))


def told(attributes: Column, fields: Column) -> Column:
    """What message attributes, or else the fields of a JSON body (both {name: text}), say of an error: (rank, text) of the
    best, null where there is none."""
    of_attributes = _candidates(attributes, 0, MESSAGES, lambda value: value)
    of_fields = _candidates(fields, len(MESSAGES), (*MESSAGES, _LAST_RESORT), _inner)
    return f.array_min(f.concat(of_attributes, of_fields))


def error_shape(told: Column) -> Column:
    """The shape of the error, from `told`."""
    text, is_code = told["text"], told["rank"] >= _CODE_RANK
    return f.when(is_code, f.left(text, f.lit(SHAPE_MAX))).otherwise(
        f.coalesce(shape(text), f.lit(NO_ERROR))
    )


def shape(text: Column) -> Column:
    """The text's telling line with placeholders; null where it is empty."""
    line = f.trim(f.regexp_extract(text, _LINE, 1))
    replaced = reduce(
        lambda so_far, each: f.regexp_replace(so_far, f.lit(each[0]), f.lit(each[1])),
        REPLACED,
        f.left(line, f.lit(_TEXT_MAX)),
    )
    return f.nullif(f.trim(f.left(replaced, f.lit(SHAPE_MAX))), f.lit(""))


def _candidates(
    values: Column, first_rank: int, names: Sequence[str], said: Callable[[Column], Column]
) -> Column:
    """Of these names, the texts with their ranks; the codes' come after all others."""
    ranks = {name: first_rank + place for place, name in enumerate(names)}
    ranks |= {name: _CODE_RANK + first_rank + place for place, name in enumerate(CODES)}
    known = f.create_map(*(f.lit(part) for item in ranks.items() for part in item))
    found = f.transform(
        f.map_entries(values),
        lambda entry: f.struct(
            f.try_element_at(known, plain(entry["key"])).alias("rank"),
            said(entry["value"]).alias("text"),
        ),
    )
    useful = f.filter(found, lambda each: each["rank"].isNotNull() & each["text"].rlike(r"\S"))
    return f.coalesce(useful, f.array().cast("array<struct<rank:int,text:string>>"))


def _inner(value: Column) -> Column:
    """What an object says of itself; null for other structures."""
    members = f.from_json(value, "message string, errorMessage string, type string")
    text = f.coalesce(members["message"], members["errorMessage"], members["type"])
    return f.when(value.startswith("{"), text).when(~value.startswith("["), value)
