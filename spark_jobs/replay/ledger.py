"""Ledger of the messages that a replay has sent, by their archive names (source, shard, position).

    LAKE/replays/REGION/ACCOUNT/QUEUE/NAME/sent/batch-RUN-000000001.json   messages of one request
    LAKE/replays/REGION/ACCOUNT/QUEUE/NAME/sent/merged-RUN-000000001.parquet

The ledger is the union of all files, whatever their names; a message may be in several. A file is
removed only after another has its content, so a crash at any point loses nothing, and file names
are not reused. It needs no appends, which S3 lacks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from storage.lake.archive_schema import SEGMENT, arrow_schema
from storage.lake.table import Lake, LakeUnusable

_MERGE_EVERY = 500
"""Number of batch files to merge, since a ledger left by a crash is read file by file."""
NAME = ["source", "shard", "position"]
_SCHEMA = arrow_schema({column: SEGMENT[column] for column in NAME})


class Named(NamedTuple):
    """A message's name in the archive."""

    source: str
    shard: int
    position: int


class Ledger:
    """A ledger in a folder of the lake, for one writer. Every method raises LakeUnusable."""

    def __init__(self, lake: Lake, folder: str, run: str, merge_every: int = _MERGE_EVERY) -> None:
        """`run` is a unique name."""
        self._lake = lake
        self._folder = f"{folder}/sent"
        self._run = run
        self._merge_every = merge_every
        self._written = 0
        self._fresh: dict[str, list[Named]] = {}

    def add(self, messages: Iterable[Named]) -> None:
        """Record the messages, durably."""
        path = self._new_path("batch", "json")
        names = list(messages)
        self._lake.write(path, json.dumps(names).encode())
        self._fresh[path] = names
        if len(self._fresh) >= self._merge_every:
            self._merge_fresh()

    def read(self) -> pa.Table:
        """The messages in the columns NAME, possibly with duplicates."""
        return self._read([file.path for file in self._lake.list(self._folder)])

    def merge(self) -> None:
        """Merge all files into one."""
        paths = [file.path for file in self._lake.list(self._folder)]
        if len(paths) > 1 or self._fresh:
            self._replace(paths, self._read(paths))

    def _merge_fresh(self) -> None:
        names = [name for batch in self._fresh.values() for name in batch]
        self._replace(list(self._fresh), _table(names))

    def _replace(self, paths: list[str], table: pa.Table) -> None:
        distinct = (
            table.group_by(NAME).aggregate([]).sort_by([(name, "ascending") for name in NAME])
        )
        with self._lake.draft(self._new_path("merged", "parquet")) as draft:
            pq.write_table(
                distinct,
                draft,
                compression="zstd",
                use_dictionary=["source", "shard"],
                column_encoding={"position": "DELTA_BINARY_PACKED"},
            )
        for path in paths:
            self._lake.remove(path)
        self._fresh.clear()

    def _read(self, paths: list[str]) -> pa.Table:
        return pa.concat_tables([_table([]), *map(self._read_file, paths)])

    def _read_file(self, path: str) -> pa.Table:
        if path.endswith(".parquet"):
            with self._lake.open(path) as stream:
                return pq.read_table(stream).cast(_SCHEMA)
        names = self._lake.read_json(path)
        try:
            return _table([Named(*name) for name in names or []])  # type: ignore[attr-defined]
        except (TypeError, ValueError, pa.ArrowException) as error:
            raise LakeUnusable(f"{self._lake.uri(path)} is damaged") from error

    def _new_path(self, kind: str, ending: str) -> str:
        self._written += 1
        return f"{self._folder}/{kind}-{self._run}-{self._written:09d}.{ending}"


def _table(names: list[Named]) -> pa.Table:
    columns = zip(*names, strict=True) if names else ([], [], [])
    return pa.table(dict(zip(NAME, map(list, columns), strict=True)), schema=_SCHEMA)


def with_replayed(session: SparkSession, rows: DataFrame, ledger: pa.Table) -> DataFrame:
    """The rows with a column `replayed`, true if the ledger has them."""
    if not ledger.num_rows:
        return rows.withColumn("replayed", f.lit(False))
    known = session.createDataFrame(ledger).distinct().withColumn("known", f.lit(True))
    return rows.join(known, NAME, "left").withColumn("replayed", f.col("known").isNotNull())
