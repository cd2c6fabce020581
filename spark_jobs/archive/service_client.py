"""Client of the service's archive pages: seal what waits, acknowledge what is archived."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from spark_jobs.archive.segments import ShardId
from sqs_api.admin_client import AdminClient, AdminConflict, AdminRefused
from sqs_api.service_place import Place

_ANSWER_S = 900
"""Sealing writes all that waits to the lake before it answers."""


class ServiceUnusable(Exception):
    """The service cannot be reached, or answers something else; the text says so in one line."""


class Refused(ServiceUnusable):
    """The service does not know the data folder or the batch; the text is what it said."""


class Table(NamedTuple):
    """A version of the archive table: its address, its id, its number."""

    table: str
    table_id: str
    version: int


class Service:
    """A client of the pages of the archive. Every method raises ServiceUnusable."""

    def __init__(self, place: Place) -> None:
        self._client = AdminClient(place)

    def seal(self) -> dict[ShardId, int]:
        """Have all that waits sealed and written; the highest batch of each shard that is in the lake."""
        return _by_shard(self._ask("POST", "archive/seal", {}), "batch")

    def archived(self) -> dict[ShardId, int]:
        """The highest batch of each of the service's shards that it knows to be archived."""
        return _by_shard(self._ask("GET", "archive", None), "archived")

    def acknowledge(self, shard: ShardId, batch: int, table: Table) -> int:
        """Have the shard forget its messages up to this batch; how many there still were. Raises Refused."""
        source, number = shard
        said = {"source": source, "shard": number, "batch": batch} | table._asdict()
        removed = self._ask("POST", "archive/archived", said).get("removed")
        return removed if isinstance(removed, int) else 0

    def _ask(self, method: str, page: str, body: object) -> Mapping[str, object]:
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
    raise ServiceUnusable(f"this is no answer of Holdfast's: {dict(answer)}")
