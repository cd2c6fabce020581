"""What a service wrote to its lake, as any program with a Parquet reader sees it; and the pages that its jobs ask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import uuid4

import pyarrow
import pyarrow.parquet as parquet
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from compat_tests.facade import Credentials
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
    node: NodeProcess,
    path: str,
    content: object = None,
    headers: dict[str, str] | None = None,
    credentials: Credentials | None = None,
) -> tuple[int, Any]:
    """Status and JSON of a page below /_holdfast/archive; with `content` by POST. The account's root signs, or another."""
    body = None if content is None else json.dumps(content).encode()
    url = f"{node.url}/_holdfast/archive{path}"
    sent = signed(
        "GET" if body is None else "POST", url, body, credentials or node.credentials, headers
    )
    try:
        with urlopen(Request(url, body, sent), timeout=_TIMEOUT_S) as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        with error:
            said = error.read()
        return error.code, json.loads(said) if said.startswith(b"{") else said.decode()


def signed(
    method: str,
    url: str,
    body: bytes | None,
    credentials: Credentials,
    headers: dict[str, str] | None = None,
) -> dict[str, str]:
    """The headers of a signed request. The nonce makes it another one than that of the same second."""
    keys = BotoCredentials(credentials.access_key_id, credentials.secret_access_key)
    given = {"Content-Type": "application/json", "X-Nonce": uuid4().hex, **(headers or {})}
    request = AWSRequest(method, url, data=body or b"", headers=given)
    SigV4Auth(keys, "sqs", credentials.region).add_auth(request)
    return dict(request.headers.items())


def waiting(node: NodeProcess) -> dict[str, Any]:
    """What waits in the service's one shard."""
    status, answer = ask(node, "")
    assert status == 200
    (shard,) = answer["shards"]
    return dict(shard)


def acknowledge(node: NodeProcess, lake: Path, batch: int, **changed: Any) -> tuple[int, Any]:
    """Take batches up to this one into the table, as the job does, and tell the service."""
    shard = waiting(node)
    source = changed.get("source", shard["source"])
    transaction = Transaction(f"holdfast:{source}:0", batch)
    write_deltalake(
        str(lake / "archive"),
        pyarrow.table({"batch": [batch]}),
        mode="append",
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
