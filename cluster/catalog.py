"""Catalog: owns the definitions of queues, in SQLite, with all of it in memory for reading.

One transaction creates, changes or deletes a queue, so there are no half-states; memory changes after it is on disk.
Messages belong to shards and never come here. aiosqlite runs SQLite in its own thread; nothing here is in the hot path.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import aiosqlite
import msgspec

from cluster.clock import Clock, Entropy
from visibility.attributes import (
    changed_attributes,
    checked_tags,
    conflicting_attribute,
    initial_attributes,
    settings_of,
)
from visibility.errors import (
    InvalidParameterValue,
    QueueDeletedRecently,
    QueueDoesNotExist,
    QueueNameExists,
)
from visibility.limits import QUEUE_REUSE_SECONDS
from visibility.model import QueueDefinition, Request
from visibility.naming import parse_arn

_RECEIPT_KEY_BYTES = 32
_SCHEMA = (
    """
    CREATE TABLE IF NOT EXISTS queues (
        queue_id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused
        account TEXT NOT NULL, region TEXT NOT NULL, name TEXT NOT NULL,
        version INTEGER NOT NULL, shard INTEGER NOT NULL,
        created_at_ms INTEGER NOT NULL, modified_at_ms INTEGER NOT NULL,
        receipt_key BLOB NOT NULL, attributes TEXT NOT NULL, tags TEXT NOT NULL,
        UNIQUE (account, region, name))
    """,
    """
    CREATE TABLE IF NOT EXISTS deleted_names (
        account TEXT NOT NULL, region TEXT NOT NULL, name TEXT NOT NULL, deleted_at_ms INTEGER NOT NULL,
        PRIMARY KEY (account, region, name))
    """,
)
_COLUMNS = (
    "queue_id, account, region, name, version, shard, created_at_ms, modified_at_ms, receipt_key, "
    "attributes, tags"
)

QueueName = tuple[str, str, str]
"""(account, region, name)."""


class Catalog:
    """All queues of a node. Reads are synchronous and from memory; writes are durable when they return."""

    def __init__(
        self,
        database: aiosqlite.Connection,
        *,
        clock: Clock,
        entropy: Entropy,
        shards: Iterable[int],
        deleted_name_wait_ms: int = QUEUE_REUSE_SECONDS * 1000,
    ) -> None:
        self._database = database
        self._clock = clock
        self._entropy = entropy
        self._shards = sorted(shards)
        self._deleted_name_wait_ms = deleted_name_wait_ms
        self._writing = asyncio.Lock()
        self._queues: dict[QueueName, QueueDefinition] = {}
        self._deleted_at_ms: dict[QueueName, int] = {}
        self.highest_queue_id = 0
        """The last queue id that was given when the catalog was opened; deleted queues count."""

    @classmethod
    async def open(
        cls,
        file: Path,
        *,
        clock: Clock,
        entropy: Entropy,
        shards: Iterable[int],
        deleted_name_wait_ms: int = QUEUE_REUSE_SECONDS * 1000,
    ) -> Catalog:
        """Open or create the database and load it. Raises aiosqlite.Error."""
        database = await aiosqlite.connect(file, isolation_level=None)
        catalog = cls(
            database,
            clock=clock,
            entropy=entropy,
            shards=shards,
            deleted_name_wait_ms=deleted_name_wait_ms,
        )
        try:
            await catalog._load()
        except BaseException:
            await database.close()
            raise
        return catalog

    async def close(self) -> None:
        """Close the database."""
        await self._database.close()

    async def _load(self) -> None:
        await self._database.execute("PRAGMA journal_mode = WAL")
        await self._database.execute("PRAGMA synchronous = FULL")
        for statement in _SCHEMA:
            await self._database.execute(statement)
        last = "SELECT seq FROM sqlite_sequence WHERE name = 'queues'"
        for (queue_id,) in await self._database.execute_fetchall(last):
            self.highest_queue_id = queue_id
        for row in await self._database.execute_fetchall(f"SELECT {_COLUMNS} FROM queues"):
            self._keep(_definition(tuple(row)))
        deleted = "SELECT account, region, name, deleted_at_ms FROM deleted_names"
        for account, region, name, at_ms in await self._database.execute_fetchall(deleted):
            self._deleted_at_ms[account, region, name] = at_ms

    # -- read -------------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[QueueDefinition]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def queue(self, account: str, region: str, name: str) -> QueueDefinition:
        """The queue of that name. Raises QueueDoesNotExist."""
        queue = self._queues.get((account, region, name))
        if queue is None:
            raise QueueDoesNotExist()
        return queue

    def queue_of_arn(self, arn: str) -> QueueDefinition | None:
        """The queue an ARN names, None if it names none."""
        parsed = parse_arn(arn)
        return self._queues.get((parsed.account, parsed.region, parsed.name)) if parsed else None

    def dead_letter_queue(self, queue: QueueDefinition) -> QueueDefinition | None:
        """The target of the queue's redrive policy; None if there is none, or none in its account and region."""
        policy = queue.settings.redrive_policy
        if policy is None:
            return None
        target = self.queue_of_arn(policy.dead_letter_target_arn)
        if target is None or (target.account, target.region) != (queue.account, queue.region):
            return None
        return target

    def renewed(self, request: Request) -> Request | None:
        """The request with the definitions of now; None if its queue is gone."""
        old = request.queue
        queue = self._queues.get((old.account, old.region, old.name))
        if queue is None or queue.queue_id != old.queue_id:
            return None
        target = self.dead_letter_queue(queue)
        if queue is old and target is request.dead_letter_queue:
            return request
        return msgspec.structs.replace(request, queue=queue, dead_letter_queue=target)

    def names(self, account: str, region: str, prefix: str) -> list[str]:
        """Names of an account's queues in a region, sorted."""
        return sorted(
            name
            for (owner, place, name) in self._queues
            if owner == account and place == region and name.startswith(prefix)
        )

    def dead_letter_sources(self, target: QueueDefinition) -> list[QueueDefinition]:
        """The queues whose redrive policy names `target`, by name."""
        arn = target.arn
        sources = [
            queue
            for queue in self
            if (policy := queue.settings.redrive_policy) and policy.dead_letter_target_arn == arn
        ]
        return sorted(sources, key=lambda queue: queue.name)

    # -- write ------------------------------------------------------------------------------------------------------------

    async def create_queue(
        self, owner: QueueName, attributes: Mapping[str, str], tags: Mapping[str, str]
    ) -> QueueDefinition:
        """The new queue, or the existing one if no given attribute differs.

        Raises QueueNameExists, QueueDeletedRecently, and what `initial_attributes` raises.
        """
        async with self._writing:
            complete = initial_attributes(owner[2], attributes)
            self._check_redrive_target(owner, attributes)
            existing = self._queues.get(owner)
            if existing is not None:
                differs = conflicting_attribute(existing.attributes, attributes)
                if differs is None:
                    return existing
                raise QueueNameExists(
                    "A queue already exists with the same name and a different value for attribute "
                    f"{differs}"
                )
            now_ms = int(self._clock.wall_s() * 1000)
            self._check_deleted(owner, now_ms)
            queue_id = await self._insert(owner, complete, tags, now_ms)
            row = await self._row(queue_id)
            self._deleted_at_ms.pop(owner, None)
            return self._keep(row)

    def _check_redrive_target(self, owner: QueueName, given: Mapping[str, str]) -> None:
        """A redrive policy names a queue that exists, in the same account and region; a queue may name itself."""
        text = given.get("RedrivePolicy")
        if not text:
            return
        target = parse_arn(json.loads(text)["deadLetterTargetArn"])
        place = None if target is None else (target.account, target.region, target.name)
        if (
            place is None
            or place[:2] != owner[:2]
            or (place not in self._queues and place != owner)
        ):
            raise InvalidParameterValue(
                f"Value {text} for parameter RedrivePolicy is invalid. Reason: Dead letter target does not exist."
            )

    def _check_deleted(self, owner: QueueName, now_ms: int) -> None:
        deleted_at_ms = self._deleted_at_ms.get(owner)
        if deleted_at_ms is not None and 0 <= now_ms - deleted_at_ms < self._deleted_name_wait_ms:
            raise QueueDeletedRecently()

    async def _insert(
        self, owner: QueueName, attributes: Mapping[str, str], tags: Mapping[str, str], now_ms: int
    ) -> int:
        shard = self._shards[len(self._queues) % len(self._shards)]
        key = self._entropy.secret(_RECEIPT_KEY_BYTES)
        texts = (json.dumps(dict(attributes)), json.dumps(dict(tags)))
        await self._database.execute("BEGIN IMMEDIATE")
        try:
            cursor = await self._database.execute(
                "INSERT INTO queues (account, region, name, version, shard, created_at_ms, "
                "modified_at_ms, receipt_key, attributes, tags) VALUES (?,?,?,1,?,?,?,?,?,?)",
                (*owner, shard, now_ms, now_ms, key, *texts),
            )
            await self._database.execute(
                "DELETE FROM deleted_names WHERE account = ? AND region = ? AND name = ?", owner
            )
            await self._database.execute("COMMIT")
        except BaseException:
            await self._database.execute("ROLLBACK")
            raise
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    async def _row(self, queue_id: int) -> QueueDefinition:
        rows = await self._database.execute_fetchall(
            f"SELECT {_COLUMNS} FROM queues WHERE queue_id = ?", (queue_id,)
        )
        return _definition(tuple(next(iter(rows))))

    async def delete_queue(self, queue: QueueDefinition) -> None:
        """Forget a definition; its name is taken for 60 s. Raises QueueDoesNotExist if another call was first."""
        owner = (queue.account, queue.region, queue.name)
        async with self._writing:
            if self.queue(*owner).queue_id != queue.queue_id:
                raise QueueDoesNotExist()
            now_ms = int(self._clock.wall_s() * 1000)
            await self._database.execute("BEGIN IMMEDIATE")
            try:
                await self._database.execute(
                    "DELETE FROM queues WHERE queue_id = ?", (queue.queue_id,)
                )
                await self._database.execute(
                    "INSERT OR REPLACE INTO deleted_names VALUES (?,?,?,?)", (*owner, now_ms)
                )
                await self._database.execute(
                    "DELETE FROM deleted_names WHERE deleted_at_ms < ?",
                    (now_ms - QUEUE_REUSE_SECONDS * 1000,),
                )
                await self._database.execute("COMMIT")
            except BaseException:
                await self._database.execute("ROLLBACK")
                raise
            del self._queues[owner]
            self._deleted_at_ms[owner] = now_ms

    async def set_attributes(self, queue: QueueDefinition, given: Mapping[str, str]) -> None:
        """Change settings. Raises what `changed_attributes` raises, and QueueDoesNotExist."""
        async with self._writing:
            current = self.queue(queue.account, queue.region, queue.name)
            attributes = changed_attributes(current.attributes, given)
            self._check_redrive_target((queue.account, queue.region, queue.name), given)
            await self._update(msgspec.structs.replace(current, attributes=attributes))

    async def tag_queue(self, queue: QueueDefinition, tags: Mapping[str, str]) -> None:
        """Add or overwrite tags. Raises QueueDoesNotExist, and what `checked_tags` raises."""
        async with self._writing:
            current = self.queue(queue.account, queue.region, queue.name)
            changed = checked_tags(queue.name, current.tags, tags)
            await self._update(msgspec.structs.replace(current, tags=changed))

    async def untag_queue(self, queue: QueueDefinition, keys: Iterable[str]) -> None:
        """Remove tags; unknown keys are ignored. Raises QueueDoesNotExist."""
        async with self._writing:
            current = self.queue(queue.account, queue.region, queue.name)
            gone = set(keys)
            kept = {key: value for key, value in current.tags.items() if key not in gone}
            await self._update(msgspec.structs.replace(current, tags=kept))

    async def _update(self, changed: QueueDefinition) -> None:
        current = self.queue(changed.account, changed.region, changed.name)
        now_ms = int(self._clock.wall_s() * 1000)
        modified_at_ms = (
            current.modified_at_ms if changed.attributes == current.attributes else now_ms
        )
        queue = msgspec.structs.replace(
            changed,
            version=changed.version + 1,
            modified_at_ms=modified_at_ms,
            settings=settings_of(changed.attributes),
        )
        await self._database.execute(
            "UPDATE queues SET version = ?, modified_at_ms = ?, attributes = ?, tags = ? "
            "WHERE queue_id = ?",
            (
                queue.version,
                queue.modified_at_ms,
                json.dumps(queue.attributes),
                json.dumps(queue.tags),
                queue.queue_id,
            ),
        )
        self._keep(queue)

    def _keep(self, queue: QueueDefinition) -> QueueDefinition:
        self._queues[queue.account, queue.region, queue.name] = queue
        return queue


def _definition(row: tuple[Any, ...]) -> QueueDefinition:
    """A row of _COLUMNS."""
    *values, attributes_text, tags_text = row
    attributes: dict[str, str] = json.loads(attributes_text)
    tags: dict[str, str] = json.loads(tags_text)
    return QueueDefinition(*values, attributes, tags, settings_of(attributes))  # type: ignore[call-arg]
