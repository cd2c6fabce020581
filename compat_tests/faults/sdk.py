"""SdkConnection: calls of the traffic through boto3 with its default retries, as most users send
them."""

from __future__ import annotations

import asyncio
import base64
import json
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import boto3
import botocore.session
from botocore import xform_name
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from compat_tests.benchmarks.bench_wire import Endpoint, Refused
from compat_tests.clients.old_boto3 import LIBRARIES

_CALLS_AT_ONCE = 128
_RETRIES = 4
"""Retries of boto3 by default, after which it gives up."""
_threads = ThreadPoolExecutor(_CALLS_AT_ONCE)


def protocols() -> tuple[str, ...]:
    """Those that boto3 can speak here: `query` needs the model of an old version."""
    return ("json", "query") if LIBRARIES.is_dir() else ("json",)


@cache
def _client(endpoint: Endpoint, protocol: str) -> Any:
    """One client for all callers: making one takes a tenth of a second."""
    credentials = endpoint.credentials
    assert credentials is not None
    core = botocore.session.Session()
    if protocol == "query":
        core.get_component("data_loader").search_paths.insert(0, str(LIBRARIES / "botocore/data"))
    session = boto3.session.Session(
        botocore_session=core,
        aws_access_key_id=credentials.access_key_id,
        aws_secret_access_key=credentials.secret_access_key,
        region_name=credentials.region,
    )
    config = Config(max_pool_connections=_CALLS_AT_ONCE)
    return session.client("sqs", endpoint_url=endpoint.url, config=config)


class SdkConnection:
    """See `Connection` of the wire."""

    def __init__(self, endpoint: Endpoint, protocol: str = "json") -> None:
        self._client = _client(endpoint, protocol)
        self._is_query = protocol == "query"
        self.retries = 0
        """Attempts of the last call after its first."""
        self.request_id = ""
        """Of the last answer: the host that gave it has it in its logs."""

    async def call(self, action: str, body: bytes) -> bytes:
        """The body of the answer; raises Refused, also where boto3 gave up."""
        members = _with_bytes(json.loads(body))
        if self._is_query and "MessageSystemAttributeNames" in members:  # younger than its model
            members["AttributeNames"] = members.pop("MessageSystemAttributeNames")
        method = getattr(self._client, xform_name(action))
        loop = asyncio.get_running_loop()
        try:
            answer = await loop.run_in_executor(_threads, lambda: method(**members))
        except ClientError as error:
            told: Any = error.response
            self.retries = told["ResponseMetadata"].get("RetryAttempts", 0)
            status = told["ResponseMetadata"].get("HTTPStatusCode", 500)
            request_id = told["ResponseMetadata"].get("RequestId", "unknown")
            raise Refused(f"{status} {error} (request {request_id})") from error
        except BotoCoreError as error:
            self.retries = _RETRIES
            raise Refused(f"503 boto3 gave up: {error}") from error
        metadata = answer.pop("ResponseMetadata")
        self.retries = metadata.get("RetryAttempts", 0)
        self.request_id = metadata.get("RequestId", "")
        return json.dumps(answer, default=_text).encode()

    def close(self) -> None:
        """The connections belong to all callers."""


def _with_bytes(members: Any) -> Any:
    """The members of a JSON request as boto3 takes them."""
    if isinstance(members, list):
        return [_with_bytes(each) for each in members]
    if not isinstance(members, dict):
        return members
    return {
        name: base64.b64decode(value) if name == "BinaryValue" else _with_bytes(value)
        for name, value in members.items()
    }


def _text(value: object) -> str:
    assert isinstance(value, bytes)
    return base64.b64encode(value).decode()
