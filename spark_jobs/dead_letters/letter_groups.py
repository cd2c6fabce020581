"""Groups of dead letters by source queue, attribute, body field and error. DataFrames only."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from spark_jobs.dead_letters.error_shapes import (
    CODES,
    MESSAGES,
    SEALED,
    error_shape,
    error_text,
    normalized,
)
from storage.lake.archive_schema import Columns

ALL, ATTRIBUTE, FIELD, ERROR = "all", "attribute", "field", "error"
OTHER = "(other)"

GROUPS: Columns = {
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
"""Messages of a source queue, sent on this day, that went to the dead-letter queue `queue` and have
in common an attribute or body field (`kind` "attribute" or "field", with `name` and `value`) or an
error ("error", with its shape as `value`); "all" has all of them once. `hour` is null unless
grouped by hour. `message_id` is an example."""

_SOURCE = ["account", "region", "source_queue", "queue"]
_GROUP = [*_SOURCE, "kind", "name", "value"]
_DISTINCT_MAX = 20
"""Attributes and fields with more values do not classify messages, so they are left out."""
_VALUES_MAX = 200
"""Further values of an attribute, and further errors, become OTHER."""
_VALUE_CHARS = 200

DEFAULT_FIELDS = (
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
"""`normalized` names of the JSON body fields to group by, if none are given."""


class Grouping(NamedTuple):
    """Attributes and body fields to group by. Empty: those with few values."""

    attributes: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    by_hour: bool = False


def dead_letter_groups(rows: DataFrame, grouping: Grouping) -> DataFrame:
    """GROUPS from rows of the archive."""
    letters = rows.where("dead_letter_queue_source_arn is not null")
    groups = _counted(_memberships(letters, grouping))
    sizes = groups.groupBy(*_GROUP).agg(f.sum("count").alias("of_value"))
    of_name = Window.partitionBy(*_SOURCE, "kind", "name")
    place = f.row_number().over(of_name.orderBy(f.desc("of_value"), "value"))
    values = sizes.select(
        *_GROUP, place.alias("place"), f.count("value").over(of_name).alias("values")
    )
    known = groups.join(values, _GROUP).where(_is_kept(grouping))
    kept = f.when(f.col("place") <= _VALUES_MAX, f.col("value")).otherwise(OTHER)
    return _counted(known.withColumn("value", kept)).select(*GROUPS)


def _is_kept(grouping: Grouping) -> Column:
    """True for kinds that the user chose, and for names with few values."""
    chosen = ((ATTRIBUTE, grouping.attributes), (FIELD, grouping.fields))
    by_default = [kind for kind, names in chosen if not names]
    if not by_default:
        return f.lit(True)
    return ~f.col("kind").isin(*by_default) | (f.col("values") <= _DISTINCT_MAX)


def _memberships(letters: DataFrame, grouping: Grouping) -> DataFrame:
    """A row for each message and group, in the columns of `_counted`."""
    hour = f.date_trunc("hour", "sent_at") if grouping.by_hour else f.lit(None).cast("timestamp")
    texts = f.transform_values("attributes", lambda _, value: value["string_value"])
    read = letters.withColumns(
        {"texts": texts, "members": f.from_json("body", "map<string,string>")}
    ).withColumn("error", error_text(f.col("texts"), f.col("members")))
    is_sealed = f.col("body").isNull() & f.col("sealed").isNotNull()
    error = f.when(is_sealed, SEALED).otherwise(error_shape(f.col("error")))
    groups = f.concat(
        f.array(_group(ALL, f.lit(""), f.lit("")), _group(ERROR, f.lit(""), error)),
        _attribute_groups(grouping),
        _field_groups(grouping),
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


def _attribute_groups(grouping: Grouping) -> Column:
    def is_wanted(name: Column, value: Column) -> Column:
        if grouping.attributes:
            wanted = name.isin(*grouping.attributes)
        else:
            wanted = ~normalized(name).isin(*MESSAGES, *CODES)
        return wanted & value.isNotNull()

    return _groups_of(ATTRIBUTE, f.map_filter("texts", is_wanted))


def _field_groups(grouping: Grouping) -> Column:
    if not grouping.fields:
        found = f.map_filter(
            "members",
            lambda name, value: normalized(name).isin(*DEFAULT_FIELDS) & value.isNotNull(),
        )
        return _groups_of(FIELD, found)
    values = [
        _group(FIELD, f.lit(name), f.get_json_object("body", json_path(name)))
        for name in grouping.fields
    ]
    return f.filter(f.array(*values), lambda group: group["value"].isNotNull())


def _groups_of(kind: str, values: Column) -> Column:
    """A group for each entry of a map; none if it is null."""
    groups = f.transform(
        f.map_entries(values), lambda entry: _group(kind, entry["key"], entry["value"])
    )
    return f.coalesce(groups, f.array().cast("array<struct<kind:string,name:string,value:string>>"))


def json_path(field: str) -> str:
    """Spark's JSON path for a field such as `detail.kind`."""
    return "$" + "".join(f"['{name}']" for name in field.split("."))
