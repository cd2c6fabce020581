"""Dead letters in groups: by source queue, attribute, body field and error shape, for each day or hour. DataFrames only."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from spark_jobs.dead_letters.error_shapes import CODES, MESSAGES, SEALED, error_shape, plain, told
from storage.archive_schema import Columns

ALL, ATTRIBUTE, FIELD, ERROR = "all", "attribute", "field", "error"
OTHER = "(other)"

LETTERS: Columns = {
    "day": "date",
    "hour": "instant",
    "account": "string",
    "region": "string",
    "source_queue": "string",
    "queue": "string",
    "kind": "string",
    "name": "string",
    "value": "string",
    "count": "int64",
    "first_sent_at": "instant",
    "last_sent_at": "instant",
    "message_id": "string",
}
"""So many messages of a source queue that were sent on this day (and in this hour, null where it was not asked for) went
to the dead-letter queue `queue` and have something in common: `kind` "attribute" or "field" with `name` and `value`; or
"error" with its shape as `value`; "all" has all of them once. `message_id` is that of one of them."""

_SOURCE = ["account", "region", "source_queue", "queue"]
_GROUP = [*_SOURCE, "kind", "name", "value"]
_FEW = 20
"""So many values an attribute or field has at most that says what kind of message it is."""
_VALUES_MAX = 200
"""The rest of an attribute's values, or of errors, is OTHER."""
_VALUE_CHARS = 200

GUESSED = (
    "type",
    "kind",
    "event",
    "eventtype",
    "eventname",
    "messagetype",
    "action",
    "operation",
    "command",
    "detailtype",
    "source",
    "status",
)
"""Fields of JSON bodies that are looked for where none are named; see `error_shapes.plain`."""


class Asked(NamedTuple):
    """What to group by. Empty: attributes and fields that have few values."""

    attributes: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    by_hour: bool = False


def letter_groups(rows: DataFrame, asked: Asked) -> DataFrame:
    """LETTERS from rows of the archive."""
    groups = _counted(_grouped(rows.where("dead_letter_queue_source_arn is not null"), asked))
    sizes = groups.groupBy(*_GROUP).agg(f.sum("count").alias("of_value"))
    of_name = Window.partitionBy(*_SOURCE, "kind", "name")
    place = f.row_number().over(of_name.orderBy(f.desc("of_value"), "value"))
    values = sizes.select(
        *_GROUP, place.alias("place"), f.count("value").over(of_name).alias("values")
    )
    known = groups.join(values, _GROUP).where(_is_telling(asked))
    kept = f.when(f.col("place") <= _VALUES_MAX, f.col("value")).otherwise(OTHER)
    return _counted(known.withColumn("value", kept)).select(*LETTERS)


def _is_telling(asked: Asked) -> Column:
    kind = f.col("kind")
    guessed = [
        each for each, names in ((ATTRIBUTE, asked.attributes), (FIELD, asked.fields)) if not names
    ]
    return ~kind.isin(*guessed) | (f.col("values") <= _FEW) if guessed else f.lit(True)


def _grouped(letters: DataFrame, asked: Asked) -> DataFrame:
    """A row for each group that a message is in, in columns that `_counted` takes."""
    hour = f.date_trunc("hour", "sent_at") if asked.by_hour else f.lit(None).cast("timestamp")
    texts = f.transform_values("attributes", lambda _, value: value["string_value"])
    read = letters.withColumns(
        {"texts": texts, "members": f.from_json("body", "map<string,string>")}
    ).withColumn("told", told(f.col("texts"), f.col("members")))
    is_sealed = f.col("body").isNull() & f.col("sealed").isNotNull()
    error = f.when(is_sealed, SEALED).otherwise(error_shape(f.col("told")))
    groups = f.concat(
        f.array(_group(ALL, f.lit(""), f.lit("")), _group(ERROR, f.lit(""), error)),
        _attribute_groups(asked),
        _field_groups(asked),
    )
    return (
        read.select(
            "day",
            hour.alias("hour"),
            "account",
            "region",
            f.substring_index("dead_letter_queue_source_arn", ":", -1).alias("source_queue"),
            "queue",
            f.lit(1).cast("bigint").alias("count"),
            f.col("sent_at").alias("first_sent_at"),
            f.col("sent_at").alias("last_sent_at"),
            "message_id",
            f.explode(groups).alias("group"),
        )
        .select("*", "group.*")
        .drop("group")
    )


def _counted(groups: DataFrame) -> DataFrame:
    return groups.groupBy("day", "hour", *_GROUP).agg(
        f.sum("count").alias("count"),
        f.min("first_sent_at").alias("first_sent_at"),
        f.max("last_sent_at").alias("last_sent_at"),
        f.min("message_id").alias("message_id"),
    )


def _group(kind: str, name: Column, value: Column) -> Column:
    short = f.left(value, f.lit(_VALUE_CHARS))
    return f.struct(f.lit(kind).alias("kind"), name.alias("name"), short.alias("value"))


def _attribute_groups(asked: Asked) -> Column:
    errors = [*MESSAGES, *CODES]

    def is_wanted(name: Column, value: Column) -> Column:
        wanted = name.isin(*asked.attributes) if asked.attributes else ~plain(name).isin(*errors)
        return wanted & value.isNotNull()

    return _groups_of(ATTRIBUTE, f.map_filter("texts", is_wanted))


def _field_groups(asked: Asked) -> Column:
    if not asked.fields:
        guessed = f.map_filter(
            "members", lambda name, value: plain(name).isin(*GUESSED) & value.isNotNull()
        )
        return _groups_of(FIELD, guessed)
    values = [
        _group(FIELD, f.lit(name), f.get_json_object("body", json_path(name)))
        for name in asked.fields
    ]
    return f.filter(f.array(*values), lambda group: group["value"].isNotNull())


def _groups_of(kind: str, values: Column) -> Column:
    """A group for each entry of a map; none where it is null."""
    groups = f.transform(
        f.map_entries(values), lambda entry: _group(kind, entry["key"], entry["value"])
    )
    return f.coalesce(groups, f.array().cast("array<struct<kind:string,name:string,value:string>>"))


def json_path(field: str) -> str:
    """The path that Spark takes, of one as in `detail.kind`."""
    return "$" + "".join(f"['{name}']" for name in field.split("."))
