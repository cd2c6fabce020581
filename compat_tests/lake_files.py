"""The files of a service's lake, read like any Parquet program does, and the pages for its jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
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


def _messages(file: Path) -> pyarrow.Table:
    """A segment's rows with the table's columns."""
    found = parquet.ParquetFile(file).read().replace_schema_metadata()
    return found.append_column("day", found["sent_at"].cast(pyarrow.date32()))


def acknowledge(node: NodeProcess, lake: Path, batch: int, **changed: Any) -> tuple[int, Any]:
    """Commit the segments up to this batch, as the job does, and acknowledge them."""
    shard = waiting(node)
    source = changed.get("source", shard["source"])
    transaction = Transaction(f"holdfast:{source}:0", batch)
    archived = DeltaTable(str(lake / "archive")) if (lake / "archive").is_dir() else None
    first = (archived.transaction_version(transaction.app_id) or 0) + 1 if archived else 1
    files = [
        lake / f"segments/{source}/shard-0/batch-{n:012d}.parquet" for n in range(first, batch + 1)
    ]
    messages = [_messages(file) for file in files if file.exists()]
    write_deltalake(
        str(lake / "archive"),
        pyarrow.concat_tables(messages or [_messages(segments(lake)[0]).slice(0, 0)]),
        mode="append",
        partition_by=["account", "queue", "day"],
        commit_properties=CommitProperties(app_transactions=[transaction]),
    )
    table = DeltaTable(str(lake / "archive"))
    said = {
        "source": source,
        "shard": 0,
        "batch": batch,
        "table": table.table_uri,
        "table_id": str(table.metadata().id),
        "version": table.version(),
    }
    return ask(node, "/archived", said | changed)
