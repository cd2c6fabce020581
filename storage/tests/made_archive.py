"""The archive's table as the job leaves it, made from segments without the job."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from storage.lake.archive_schema import (
    ARCHIVE,
    TABLE,
    TABLE_PARTITIONS,
    BatchId,
    arrow_schema,
    transaction_id,
)
from storage.lake.table import Lake


def rows_of(lake: Lake, batches: Sequence[BatchId]) -> pa.Table:
    """The rows of segments, in the table's columns."""
    found = [pq.ParquetFile(lake.path(batch.path)).read() for batch in batches]
    rows = pa.concat_tables([each.replace_schema_metadata() for each in found])
    return rows.append_column("day", rows["sent_at"].cast(pa.date32()))


def commit(lake: Lake, rows: pa.Table | None, up_to: BatchId) -> DeltaTable:
    """Add rows, or none, in a commit that takes the shard's batches up to this one."""
    name = transaction_id(up_to.source, up_to.shard)
    schema = arrow_schema(TABLE)
    write_deltalake(
        lake.uri(ARCHIVE),
        schema.empty_table() if rows is None else rows.cast(schema),
        mode="append",
        partition_by=list(TABLE_PARTITIONS),
        commit_properties=CommitProperties(app_transactions=[Transaction(name, up_to.number)]),
    )
    return DeltaTable(lake.uri(ARCHIVE))
