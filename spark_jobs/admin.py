"""The service's part of the archive: it seals what waits, and forgets what it is told is archived.

A service on this machine takes the requests as they are; elsewhere they must be signed with an access key of the root of
the service's own account, which is looked for where the AWS SDKs look.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

import botocore.session
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError, HTTPClientError
from botocore.httpsession import URLLib3Session

from spark_jobs.segments import ShardId

_PATH = "/_holdfast/archive"
_CONNECT_S = 5
_ANSWER_S = 900
"""Sealing writes all that waits to the lake before it answers."""


class ServiceUnusable(Exception):
    """The service cannot be reached, or answers something else; the text says so in one line."""


class Refused(ServiceUnusable):
    """The service does not know the data folder or the batch; the text is what it said."""


class Service:
    """A client of the admin endpoint. Every method raises ServiceUnusable."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        authorities = botocore.session.Session().get_config_variable("ca_bundle")
        self._http = URLLib3Session(verify=authorities or True, timeout=(_CONNECT_S, _ANSWER_S))

    def seal(self) -> dict[ShardId, int]:
        """Have all that waits sealed and written; the highest batch of each shard that is in the lake."""
        return _by_shard(self._ask("POST", f"{_PATH}/seal", {}), "batch")

    def archived(self) -> dict[ShardId, int]:
        """The highest batch of each of the service's shards that it knows to be archived."""
        return _by_shard(self._ask("GET", _PATH, None), "archived")

    def acknowledge(self, shard: ShardId, batch: int, table: str, version: int) -> int:
        """Have the shard forget its messages up to this batch; how many there still were. Raises Refused."""
        source, number = shard
        body = {
            "source": source,
            "shard": number,
            "batch": batch,
            "table": table,
            "version": version,
        }
        answer = self._ask("POST", f"{_PATH}/archived", body)
        removed = answer.get("removed")
        return removed if isinstance(removed, int) else 0

    def _ask(self, method: str, path: str, body: object) -> Mapping[str, object]:
        content = b"" if body is None else json.dumps(body).encode()
        request = AWSRequest(method, self._endpoint + path, data=content)
        request.headers["Content-Type"] = "application/json"
        try:
            self._sign(request)
            response = self._http.send(request.prepare())
        except (BotoCoreError, HTTPClientError, OSError, ValueError) as error:
            raise ServiceUnusable(f"{self._endpoint}: {error}") from error
        answer = _decoded(response.content)
        if response.status_code == 409:
            raise Refused(str(answer.get("error")))
        if response.status_code != 200:
            reason = answer.get("error") or response.text[:200]
            raise ServiceUnusable(f"{self._endpoint}: {response.status_code} {reason}")
        return answer

    def _sign(self, request: AWSRequest) -> None:
        if _is_loopback(urlsplit(self._endpoint).hostname or ""):
            return
        session = botocore.session.Session()
        if credentials := session.get_credentials():
            region = session.get_config_variable("region") or "us-east-1"
            SigV4Auth(credentials, "sqs", region).add_auth(request)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _decoded(content: bytes) -> Mapping[str, object]:
    try:
        answer = json.loads(content)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _by_shard(answer: Mapping[str, object], name: str) -> dict[ShardId, int]:
    shards = answer.get("shards")
    if isinstance(shards, list):
        with suppress(KeyError, TypeError, ValueError):
            return {(str(each["source"]), int(each["shard"])): int(each[name]) for each in shards}
    raise ServiceUnusable(f"this is no answer of Holdfast's: {dict(answer)}")
