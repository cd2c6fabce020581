"""Client of the service's archive pages: seal waiting messages, acknowledge archived batches."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from spark_jobs.archive.segment_files import ShardId
from sqs_api.commands.page_client import AdminClient, AdminConflict, AdminRefused
from sqs_api.settings.service_place import Place

_ANSWER_S = 900
"""The reply to a seal comes after all waiting messages are in the lake."""


class ServiceUnusable(Exception):
    """The service cannot be reached or sent an invalid reply; the text is one line."""


class Refused(ServiceUnusable):
    """The service does not know the data folder or the batch; the text is its message."""


class TableVersion(NamedTuple):
    """A version of the archive table."""

    table: str
    table_id: str
    version: int


class ArchiveClient:
    """Client of the archive pages. Every method raises ServiceUnusable."""

    def __init__(self, place: Place) -> None:
        self._client = AdminClient(place)
        self.left_out: list[int] = []
        """Shards that the last `seal` or `archived` says nothing about: those of clusters of the
        fleet that are away."""

    def seal(self) -> dict[ShardId, int]:
        """Write all waiting messages to the lake; the highest batch of each shard there."""
        return self._of_shards(self._request("POST", "archive/seal", {}), "batch")

    def archived(self) -> dict[ShardId, int]:
        """The highest archived batch of each shard that the service knows of."""
        return self._of_shards(self._request("GET", "archive", None), "archived")

    def _of_shards(self, answer: Mapping[str, object], name: str) -> dict[ShardId, int]:
        found = _by_shard(answer, name)
        left_out = answer.get("left_out")
        self.left_out = [*map(int, left_out)] if isinstance(left_out, list) else []
        return found

    def acknowledge(self, shard: ShardId, batch: int, table: TableVersion) -> int:
        """Let the shard remove its messages up to this batch; their number. Raises Refused."""
        source, number = shard
        archived = {"source": source, "shard": number, "batch": batch} | table._asdict()
        removed = self._request("POST", "archive/archived", archived).get("removed")
        return removed if isinstance(removed, int) else 0

    def _request(self, method: str, page: str, body: object) -> Mapping[str, object]:
        try:
            answer = self._client.ask(method, page, body, answer_s=_ANSWER_S)
        except AdminConflict as error:
            raise Refused(str(error)) from error
        except AdminRefused as error:
            raise ServiceUnusable(str(error)) from error
        return answer if isinstance(answer, dict) else {}


def _by_shard(answer: Mapping[str, object], name: str) -> dict[ShardId, int]:
    shards = answer.get("shards")
    if isinstance(shards, list):
        with suppress(KeyError, TypeError, ValueError):
            return {(str(each["source"]), int(each["shard"])): int(each[name]) for each in shards}
    raise ServiceUnusable(f"not a reply of Holdfast: {dict(answer)}")
