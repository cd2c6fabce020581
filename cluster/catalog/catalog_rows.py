"""CatalogRows: the tables of the catalog and their transactions; what may be written is decided in `catalog.py`.

aiosqlite runs SQLite in its own thread. Receipt keys are stored encrypted: who reads the file cannot make receipt handles.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from enum import IntEnum
from typing import Any, NamedTuple

import aiosqlite

from auth.envelope import SealBroken
from cluster.keys.keyring import Secrets
from visibility.contract.attributes import settings_of
from visibility.contract.limits import QUEUE_REUSE_SECONDS
from visibility.contract.model import QueueDefinition

QueueName = tuple[str, str, str]
"""(account, region, name)."""

_SHAPE = """
    account TEXT NOT NULL, region TEXT NOT NULL, name TEXT NOT NULL,
    version INTEGER NOT NULL, shard INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL, modified_at_ms INTEGER NOT NULL,
    receipt_key BLOB NOT NULL, attributes TEXT NOT NULL, tags TEXT NOT NULL,
    deduplication_scope TEXT NOT NULL DEFAULT ''
"""
_SCHEMA = (
    f"""
    CREATE TABLE IF NOT EXISTS queues (
        queue_id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused
        {_SHAPE}, UNIQUE (account, region, name))
    """,
    f"""
    CREATE TABLE IF NOT EXISTS deleted_queues (
        queue_id INTEGER PRIMARY KEY, {_SHAPE}, deleted_at_ms INTEGER NOT NULL,
        state INTEGER NOT NULL DEFAULT 0, continued_as INTEGER NOT NULL DEFAULT 0)
    """,
    """
    CREATE TABLE IF NOT EXISTS deleted_names (
        account TEXT NOT NULL, region TEXT NOT NULL, name TEXT NOT NULL, deleted_at_ms INTEGER NOT NULL,
        PRIMARY KEY (account, region, name))
    """,
)
_ADDED = (
    ("deleted_queues", "state INTEGER NOT NULL DEFAULT 0"),
    ("deleted_queues", "continued_as INTEGER NOT NULL DEFAULT 0"),
)
"""Columns that the first catalogs of this format lack."""
_VALUES = (
    "account, region, name, version, shard, created_at_ms, modified_at_ms, receipt_key, "
    "attributes, tags, deduplication_scope"
)
_COLUMNS = f"queue_id, {_VALUES}"
_RECEIPT_KEY = "receipt key"


class CatalogUnreadable(Exception):
    """A definition cannot be read; the text says why in one line."""


class KeptState(IntEnum):
    """State of a queue that was deleted or purged. Stored: never renumber."""

    KEPT = 0  # it can be restored
    RESTORING = 1  # it was purged, and its messages are moving back
    DROPPING = 2  # its messages may be forgotten, and its row when that is done


class KeptQueue(NamedTuple):
    """A queue as it was when it was deleted or purged."""

    queue: QueueDefinition
    deleted_at_ms: int
    state: KeptState = KeptState.KEPT
    continued_as: int = 0
    """Id of the queue that continues it since a purge, 0 for a deleted one."""


class CatalogRows:
    """The catalog's file. Every write is one transaction, durable when it returns; all raise aiosqlite.Error."""

    def __init__(self, database: aiosqlite.Connection, secrets: Secrets) -> None:
        """`database` is in autocommit mode; `prepare` comes first."""
        self._database = database
        self._secrets = secrets

    async def close(self) -> None:
        """Close the file."""
        await self._database.close()

    async def prepare(self) -> None:
        """Check every page and make the tables. Raises CatalogUnreadable."""
        (found,) = await self._database.execute_fetchall("PRAGMA quick_check(1)")
        if found[0] != "ok":
            raise CatalogUnreadable(f"it is damaged: {' '.join(found[0].split())}")
        await self._database.execute("PRAGMA journal_mode = WAL")
        await self._database.execute("PRAGMA synchronous = FULL")
        async with self._transaction():
            for statement in _SCHEMA:
                await self._database.execute(statement)
            for table, column in _ADDED:
                with suppress(aiosqlite.OperationalError):  # it is there
                    await self._database.execute(f"ALTER TABLE {table} ADD COLUMN {column}")

    # -- read -------------------------------------------------------------------------------------------------------------

    async def highest_queue_id(self) -> int:
        """The last id that was given, 0 if none was; deleted queues count."""
        rows = await self._database.execute_fetchall(
            "SELECT seq FROM sqlite_sequence WHERE name = 'queues'"
        )
        return max((queue_id for (queue_id,) in rows), default=0)

    async def queues(self) -> list[QueueDefinition]:
        """All queues that exist."""
        rows = await self._database.execute_fetchall(f"SELECT {_COLUMNS} FROM queues")
        return [self._definition(tuple(row)) for row in rows]

    async def kept_queues(self) -> list[KeptQueue]:
        """All queues that were deleted or purged and not forgotten, by id."""
        rows = await self._database.execute_fetchall(
            f"SELECT deleted_at_ms, state, continued_as, {_COLUMNS} "
            "FROM deleted_queues ORDER BY queue_id"
        )
        return [
            KeptQueue(self._definition(values), at_ms, KeptState(state), successor_id)
            for at_ms, state, successor_id, *values in rows
        ]

    async def deleted_names(self) -> dict[QueueName, int]:
        """When names were given up, for those that may still have to wait."""
        rows = await self._database.execute_fetchall(
            "SELECT account, region, name, deleted_at_ms FROM deleted_names"
        )
        return {(account, region, name): at_ms for account, region, name, at_ms in rows}

    # -- write ------------------------------------------------------------------------------------------------------------

    async def insert(
        self,
        owner: QueueName,
        attributes: Mapping[str, str],
        tags: Mapping[str, str],
        *,
        shard: int,
        receipt_key: bytes,
        now_ms: int,
    ) -> QueueDefinition:
        """A new queue, under an id that was never given before."""
        scope = attributes.get("DeduplicationScope", "")
        texts = (json.dumps(dict(attributes)), json.dumps(dict(tags)))
        kept_key = self._secrets.encrypt(receipt_key, _RECEIPT_KEY)
        values = (*owner, 1, shard, now_ms, now_ms, kept_key, *texts, scope)
        async with self._transaction():
            cursor = await self._database.execute(
                f"INSERT INTO queues ({_VALUES}) VALUES (?,?,?,?,?,?,?,?,?,?,?)", values
            )
            await self._free_name(owner)
        assert cursor.lastrowid is not None
        return self._definition((cursor.lastrowid, *values))

    async def update(self, queue: QueueDefinition) -> None:
        """Overwrite what can change of a queue."""
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

    async def delete(self, queue: QueueDefinition, now_ms: int, state: KeptState) -> None:
        """Put a queue among the deleted ones and note its name."""
        owner = (queue.account, queue.region, queue.name)
        async with self._transaction():
            await self._set_aside(queue, now_ms, state)
            await self._database.execute(
                "INSERT OR REPLACE INTO deleted_names VALUES (?,?,?,?)", (*owner, now_ms)
            )
            await self._database.execute(
                "DELETE FROM deleted_names WHERE deleted_at_ms < ?",
                (now_ms - QUEUE_REUSE_SECONDS * 1000,),
            )

    async def purge(self, queue: QueueDefinition, now_ms: int, state: KeptState) -> int:
        """Put a queue among the deleted ones and give its place to a new id, which is returned."""
        async with self._transaction():
            await self._set_aside(queue, now_ms, state)
            cursor = await self._database.execute(
                f"INSERT INTO queues ({_VALUES}) "
                f"SELECT {_VALUES} FROM deleted_queues WHERE queue_id = ?",
                (queue.queue_id,),
            )
            successor_id = cursor.lastrowid
            await self._database.execute(
                "UPDATE queues SET version = version + 1 WHERE queue_id = ?", (successor_id,)
            )
            await self._database.execute(
                "UPDATE deleted_queues SET continued_as = ? WHERE queue_id = ?",
                (successor_id, queue.queue_id),
            )
        assert successor_id is not None
        return successor_id

    async def _set_aside(self, queue: QueueDefinition, now_ms: int, state: KeptState) -> None:
        await self._database.execute(
            f"INSERT INTO deleted_queues ({_COLUMNS}, deleted_at_ms, state) "
            f"SELECT {_COLUMNS}, ?, ? FROM queues WHERE queue_id = ?",
            (now_ms, state, queue.queue_id),
        )
        await self._database.execute("DELETE FROM queues WHERE queue_id = ?", (queue.queue_id,))

    async def restore(self, queue: QueueDefinition) -> None:
        """Put a deleted queue back under its own id, with the version of `queue`."""
        async with self._transaction():
            await self._database.execute(
                f"INSERT INTO queues ({_COLUMNS}) "
                f"SELECT {_COLUMNS} FROM deleted_queues WHERE queue_id = ?",
                (queue.queue_id,),
            )
            await self._database.execute(
                "UPDATE queues SET version = ? WHERE queue_id = ?", (queue.version, queue.queue_id)
            )
            await self._database.execute(
                "DELETE FROM deleted_queues WHERE queue_id = ?", (queue.queue_id,)
            )
            await self._free_name((queue.account, queue.region, queue.name))

    async def set_state(self, queue_ids: Iterable[int], state: KeptState) -> None:
        """Change what becomes of deleted or purged queues."""
        async with self._transaction():
            await self._database.executemany(
                "UPDATE deleted_queues SET state = ? WHERE queue_id = ?",
                [(state, queue_id) for queue_id in queue_ids],
            )

    async def forget(self, queue_id: int, continued_as: int) -> None:
        """Take a deleted or purged queue away for good; one that it continued is continued as its successor."""
        async with self._transaction():
            await self._database.execute(
                "DELETE FROM deleted_queues WHERE queue_id = ?", (queue_id,)
            )
            await self._database.execute(
                "UPDATE deleted_queues SET continued_as = ? WHERE continued_as = ?",
                (continued_as, queue_id),
            )

    async def _free_name(self, owner: QueueName) -> None:
        await self._database.execute(
            "DELETE FROM deleted_names WHERE account = ? AND region = ? AND name = ?", owner
        )

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[None]:
        """All or nothing. Who is cancelled in here does not know which: writes belong into tasks that are not."""
        await self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            await self._database.execute("COMMIT")
        except BaseException:
            with suppress(aiosqlite.OperationalError):  # there is no transaction: it was committed
                await self._database.execute("ROLLBACK")
            raise

    def _definition(self, row: Sequence[Any]) -> QueueDefinition:
        """A row of _COLUMNS. Raises CatalogUnreadable."""
        *values, kept_key, attributes_text, tags_text, scope = row
        try:
            receipt_key = self._secrets.decrypt(kept_key, _RECEIPT_KEY)
            attributes: dict[str, str] = json.loads(attributes_text)
            tags: Any = json.loads(tags_text)
            if not isinstance(tags, dict):
                raise TypeError("tags are no map")
            settings = settings_of(attributes, tags)
        except (SealBroken, ValueError, TypeError, LookupError, AttributeError) as error:
            text = " ".join(str(error).split())
            raise CatalogUnreadable(f"queue {values[3]!r} cannot be read: {text}") from error
        return QueueDefinition(  # type: ignore[call-arg]
            *values, receipt_key, attributes, tags, settings, scope
        )
