"""Error shapes: error texts with placeholders for numbers, ids and times, so that errors group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as f

SHAPE_MAX = 200
_TEXT_MAX = 500
"""Characters of a text that are examined, so that no pattern takes long."""

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
"""Patterns and placeholders, applied in order. Java and Python read the patterns alike."""

MESSAGES = (
    "errormessage",
    "exceptionmessage",
    "error",
    "exception",
    "failurereason",
    "stacktrace",
    "cause",
)
"""`normalized` names of attributes and body fields with an error's text, the best first."""
CODES = ("errorcode", "errortype", "exceptiontype")
"""Names of attributes and fields with an error code, which is kept as it is."""
_LAST_RESORT = "message"
"""A body field that often has other text, so it is used only if there is nothing better."""

NO_ERROR = "(no error text)"
SEALED = "(sealed)"

_LINE = r"(?s)\A\s*(?:Traceback \(most recent call last\).*[\r\n]\s*)?([^\r\n]+)"
"""The most informative line: the last of a Python traceback, else the first."""
_CODE_RANK = 100


def normalized(name: Column) -> Column:
    """A name in lower case without separators."""
    return f.lower(f.regexp_replace(name, "[^A-Za-z0-9]", ""))


def error_text(attributes: Column, fields: Column) -> Column:
    """The best error text in message attributes, else in fields of a JSON body (both {name: text}).

    A struct (rank, text); null if there is none.
    """
    of_attributes = _candidates(attributes, 0, MESSAGES, lambda value: value)
    of_fields = _candidates(fields, len(MESSAGES), (*MESSAGES, _LAST_RESORT), _text_inside)
    return f.array_min(f.concat(of_attributes, of_fields))


def error_shape(found: Column) -> Column:
    """The shape of an error, from `error_text`."""
    text, is_code = found["text"], found["rank"] >= _CODE_RANK
    return f.when(is_code, f.left(text, f.lit(SHAPE_MAX))).otherwise(
        f.coalesce(shape(text), f.lit(NO_ERROR))
    )


def shape(text: Column) -> Column:
    """The text's most informative line with placeholders; null if it is empty."""
    line = f.trim(f.regexp_extract(text, _LINE, 1))
    replaced = reduce(
        lambda so_far, each: f.regexp_replace(so_far, f.lit(each[0]), f.lit(each[1])),
        REPLACED,
        f.left(line, f.lit(_TEXT_MAX)),
    )
    return f.nullif(f.trim(f.left(replaced, f.lit(SHAPE_MAX))), f.lit(""))


def _candidates(
    values: Column, first_rank: int, names: Sequence[str], to_text: Callable[[Column], Column]
) -> Column:
    """Texts under these names with their ranks; codes rank last."""
    ranks = {name: first_rank + place for place, name in enumerate(names)}
    ranks |= {name: _CODE_RANK + first_rank + place for place, name in enumerate(CODES)}
    known = f.create_map(*(f.lit(part) for item in ranks.items() for part in item))
    found = f.transform(
        f.map_entries(values),
        lambda entry: f.struct(
            f.try_element_at(known, normalized(entry["key"])).alias("rank"),
            to_text(entry["value"]).alias("text"),
        ),
    )
    useful = f.filter(found, lambda each: each["rank"].isNotNull() & each["text"].rlike(r"\S"))
    return f.coalesce(useful, f.array().cast("array<struct<rank:int,text:string>>"))


def _text_inside(value: Column) -> Column:
    """The message of a JSON object, null for a list, else the value itself."""
    members = f.from_json(value, "message string, errorMessage string, type string")
    text = f.coalesce(members["message"], members["errorMessage"], members["type"])
    return f.when(value.startswith("{"), text).when(~value.startswith("["), value)
