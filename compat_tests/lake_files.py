"""What a service wrote to its lake, as any program with a Parquet reader sees it; and the pages that its jobs ask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pyarrow.parquet as parquet

from compat_tests.node_process import NodeProcess

_TIMEOUT_S = 60


def segments(lake: Path) -> list[Path]:
    """Files of archived messages, in order."""
    return sorted(lake.glob("segments/*/*/*.parquet"))


def rows(lake: Path, kind: str = "segments") -> list[dict[str, Any]]:
    """All rows of one kind: segments, snapshots or flows."""
    found = sorted(lake.glob(f"{kind}/**/*.parquet"))
    return [row for file in found for row in parquet.ParquetFile(file).read().to_pylist()]


def footer(file: Path) -> dict[str, Any]:
    """What a segment says of itself."""
    said: dict[str, Any] = json.loads(parquet.read_metadata(file).metadata[b"holdfast"])
    return said


def ask(
    node: NodeProcess, path: str, content: object = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Status and JSON of a page below /_holdfast/archive; with `content` by POST."""
    body = None if content is None else json.dumps(content).encode()
    request = Request(f"{node.url}/_holdfast/archive{path}", body, headers or {})
    try:
        with urlopen(request, timeout=_TIMEOUT_S) as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        with error:
            said = error.read()
        return error.code, json.loads(said) if said.startswith(b"{") else said.decode()


def waiting(node: NodeProcess) -> dict[str, Any]:
    """What waits in the service's one shard."""
    status, answer = ask(node, "")
    assert status == 200
    (shard,) = answer["shards"]
    return dict(shard)


def acknowledge(node: NodeProcess, batch: int, **changed: Any) -> tuple[int, Any]:
    """Say that a batch, and all before it, are archived."""
    shard = waiting(node)
    said = {"source": shard["source"], "shard": 0, "batch": batch, "table": "t", "version": 1}
    return ask(node, "/archived", said | changed)
