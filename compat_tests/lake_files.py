"""The files of a service's lake, read like any Parquet program does, and the pages for its jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute as compute
import pyarrow.parquet as parquet
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from compat_tests import pages
from compat_tests.facade import Credentials
from compat_tests.node_process import NodeProcess


def segments(lake: Path) -> list[Path]:
    """Files of archived messages, in order."""
    return sorted(lake.glob("segments/*/*/*.parquet"))


def rows(lake: Path, kind: str = "segments") -> list[dict[str, Any]]:
    """All rows of one kind: segments, snapshots or flows."""
    found = sorted(lake.glob(f"{kind}/**/*.parquet"))
    return [row for file in found for row in parquet.ParquetFile(file).read().to_pylist()]


def footer(file: Path) -> dict[str, Any]:
    """A segment's own metadata."""
    said: dict[str, Any] = json.loads(parquet.read_metadata(file).metadata[b"holdfast"])
    return said


def ask(
    node: NodeProcess,
    path: str,
    content: object = None,
    headers: dict[str, str] | None = None,
    credentials: Credentials | None = None,
) -> tuple[int, Any]:
    """Status and JSON of a page below /_holdfast/archive, as `pages.ask`. By default the root
    signs."""
    signer = credentials or node.credentials
    return pages.ask(node.url, signer, f"archive{path}", content, headers)


def waiting(node: NodeProcess) -> dict[str, Any]:
    """The waiting messages of the service's one shard."""
    status, answer = ask(node, "")
    assert status == 200
    (shard,) = answer["shards"]
    return dict(shard)


def acknowledge(node: NodeProcess, lake: Path, batch: int, **changed: Any) -> tuple[int, Any]:
    """Commit batches up to this one to the table, as the job does, and acknowledge them."""
    shard = waiting(node)
    source = changed.get("source", shard["source"])
    place = str(lake / "archive")
    committed = _commit(lake, place, source, batch)
    said = {
        "source": source,
        "shard": 0,
        "batch": batch,
        "table": committed.table_uri if committed else place,
        "table_id": str(committed.metadata().id) if committed else "none",
        "version": committed.version() if committed else 0,
    }
    return ask(node, "/archived", said | changed)


def _commit(lake: Path, place: str, source: str, batch: int) -> DeltaTable | None:
    """The table with all segments of a source up to this batch; None if there is none yet."""
    name = f"holdfast:{source}:0"
    before = DeltaTable(place) if DeltaTable.is_deltatable(place) else None
    done = (before.transaction_version(name) or 0) if before else 0
    new = [
        parquet.ParquetFile(file).read()
        for file in segments(lake)
        if file.parts[-3] == source and done < int(footer(file)["batch"]) <= batch
    ]
    if new:
        rows = pyarrow.concat_tables(new)
        day = compute.cast(compute.cast(rows["sent_at"], pyarrow.timestamp("us")), pyarrow.date32())
        write_deltalake(
            place,
            rows.append_column("day", day),
            mode="append",
            partition_by=["account", "queue", "day"],
            commit_properties=CommitProperties(app_transactions=[Transaction(name, batch)]),
        )
    return DeltaTable(place) if DeltaTable.is_deltatable(place) else None
