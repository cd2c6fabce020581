"""Catalog: owns the definitions of queues, in SQLite, with all of it in memory for reading.

One transaction creates, changes, deletes or restores a queue, so there are no half-states; memory changes after it is on
disk. Messages belong to shards and never come here. aiosqlite runs SQLite in its own thread; no write is in the hot path.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiosqlite
import msgspec

from auth.errors import AccessDenied
from cluster.catalog.catalog_rows import (
    CatalogRows,
    CatalogUnreadable,
    KeptQueue,
    KeptState,
    QueueName,
)
from cluster.catalog.queue_view import QueueView
from cluster.keys.keyring import Secrets
from cluster.shards.clock import Clock, Entropy
from visibility.contract.attributes import (
    changed_attributes,
    checked_tags,
    conflicting_attribute,
    initial_attributes,
    settings_of,
)
from visibility.contract.errors import (
    PurgeQueueInProgress,
    QueueDeletedRecently,
    QueueDoesNotExist,
    QueueNameExists,
)
from visibility.contract.limits import PURGE_INTERVAL_SECONDS, QUEUE_REUSE_SECONDS
from visibility.contract.model import QueueDefinition
from visibility.contract.naming import parse_arn
from visibility.contract.permissions import with_permission, without_permission
from visibility.contract.queue_policy import check_policy_of_queue
from visibility.contract.redrive_policies import redrive_allowed, redrive_refusal
from visibility.contract.tags import PROTECT_ON, PROTECT_TAG

CATALOG_FILE = "catalog.sqlite"
_RECEIPT_KEY_BYTES = 32


class Catalog(QueueView):
    """All queues of a node. Reads are synchronous and from memory; writes are durable when they return."""

    def __init__(
        self,
        rows: CatalogRows,
        *,
        clock: Clock,
        entropy: Entropy,
        shards: Iterable[int],
        deleted_name_wait_ms: int = QUEUE_REUSE_SECONDS * 1000,
        purge_interval_ms: int = PURGE_INTERVAL_SECONDS * 1000,
        restore_window_ms: int = 0,
    ) -> None:
        super().__init__(restore_window_ms)
        self._purge_interval_ms = purge_interval_ms
        self._rows = rows
        self._clock = clock
        self._entropy = entropy
        self._shards = sorted(shards)
        self._deleted_name_wait_ms = deleted_name_wait_ms
        self._writing = asyncio.Lock()
        self._purged_at_ms: dict[int, int] = {}
        """Time of the last purge, by the id of the queue that continues."""
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
        secrets: Secrets,
        shards: Iterable[int],
        deleted_name_wait_ms: int = QUEUE_REUSE_SECONDS * 1000,
        purge_interval_ms: int = PURGE_INTERVAL_SECONDS * 1000,
        restore_window_ms: int = 0,
    ) -> Catalog:
        """Open or create the database and load it. Raises aiosqlite.Error, CatalogUnreadable."""
        rows = CatalogRows(await aiosqlite.connect(file, isolation_level=None), secrets)
        catalog = cls(
            rows,
            clock=clock,
            entropy=entropy,
            shards=shards,
            deleted_name_wait_ms=deleted_name_wait_ms,
            purge_interval_ms=purge_interval_ms,
            restore_window_ms=restore_window_ms,
        )
        try:
            await catalog._load()
        except CatalogUnreadable as error:
            await rows.close()
            raise CatalogUnreadable(f"{file}: {error}") from error
        except BaseException:
            await rows.close()
            raise
        return catalog

    async def close(self) -> None:
        """Close the database."""
        await self._rows.close()

    async def _load(self) -> None:
        await self._rows.prepare()
        self.highest_queue_id = await self._rows.highest_queue_id()
        for queue in await self._rows.queues():
            self._keep(queue)
        for kept in await self._rows.kept_queues():
            self._keep_aside(kept)
        self._deleted_at_ms = await self._rows.deleted_names()

    def restorable_queues(self) -> list[KeptQueue]:
        """The deleted and purged queues that can be restored now, the latest first."""
        return self.kept.restorable(self._now_ms())

    def _now_ms(self) -> int:
        return int(self._clock.wall_s() * 1000)

    # -- write ------------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def unchanging(self) -> AsyncIterator[None]:
        """No queue is created, changed or deleted in here: writes wait, reads go on. For copies of the file."""
        async with self._writing:
            yield

    async def create_queue(
        self, owner: QueueName, attributes: Mapping[str, str], tags: Mapping[str, str]
    ) -> QueueDefinition:
        """The new queue, or the existing one if no given attribute differs.

        Raises QueueNameExists, QueueDeletedRecently, InvalidParameterValue for a redrive policy whose target is missing or
        denies, and what `initial_attributes` and `check_policy_of_queue` raise.
        """
        async with self._writing:
            complete = initial_attributes(owner[2], attributes)
            _check_policy(owner, attributes)
            existing = self._queues.get(owner)
            if existing is not None:
                differs = conflicting_attribute(existing.attributes, attributes)
                if differs is None:
                    return existing
                raise QueueNameExists(
                    "A queue already exists with the same name and a different value for attribute "
                    f"{differs}"
                )
            self._check_redrive_policy(owner, attributes, complete)
            now_ms = self._now_ms()
            self._check_deleted(owner, now_ms)
            queue = await self._rows.insert(
                owner,
                complete,
                tags,
                shard=self._shards[len(self._queues) % len(self._shards)],
                receipt_key=self._entropy.secret(_RECEIPT_KEY_BYTES),
                now_ms=now_ms,
            )
            self._deleted_at_ms.pop(owner, None)
            return self._keep(queue)

    def _check_redrive_policy(
        self, owner: QueueName, given: Mapping[str, str], complete: Mapping[str, str]
    ) -> None:
        """A policy that is given names a queue of its account and region that allows it; a queue may name itself.

        `complete` are all attributes the queue will have. That both are of one type is checked by name, with them.
        """
        text = given.get("RedrivePolicy")
        policy = settings_of(complete).redrive_policy
        if not text or policy is None:
            return
        parsed = parse_arn(policy.dead_letter_target_arn)
        place = None if parsed is None else (parsed.account, parsed.region, parsed.name)
        target = self._queues.get(place) if place is not None else None
        there = complete if place == owner else target.attributes if target else None
        if place is None or place[:2] != owner[:2] or there is None:
            raise redrive_refusal(text, "Dead letter target does not exist.")
        source_arn = _arn(owner)
        if not redrive_allowed(there, source_arn):
            raise redrive_refusal(
                text,
                f"Queue {policy.dead_letter_target_arn} does not allow the queue {source_arn} "
                "to use it as a dead-letter queue.",
            )

    def _check_deleted(self, owner: QueueName, now_ms: int) -> None:
        deleted_at_ms = self._deleted_at_ms.get(owner)
        if deleted_at_ms is not None and 0 <= now_ms - deleted_at_ms < self._deleted_name_wait_ms:
            raise QueueDeletedRecently()

    async def delete_queue(self, queue: QueueDefinition, *, force: bool = False) -> None:
        """Take a queue away; its name is taken for 60 s. It can be restored within the window.

        Raises QueueDoesNotExist if another call was first, AccessDenied for a protected queue without `force`.
        """
        async with self._writing:
            current = self._removable(queue, force=force)
            now_ms = self._now_ms()
            kept = KeptQueue(current, now_ms, self.kept.state_of_removed)
            await self._rows.delete(current, now_ms, kept.state)
            owner = (current.account, current.region, current.name)
            self._remove(current)
            self._deleted_at_ms[owner] = now_ms
            self._keep_aside(kept)

    async def purge_queue(
        self, queue: QueueDefinition, *, force: bool = False
    ) -> tuple[QueueDefinition, QueueDefinition]:
        """Give the queue a new id, under which it is empty; returns it with its old id and with the new one.

        The shard is to be told at once, with ContinueQueue: a start tells it again. Raises QueueDoesNotExist,
        PurgeQueueInProgress, AccessDenied for a protected queue without `force`.
        """
        async with self._writing:
            current = self._removable(queue, force=force)
            now_ms = self._now_ms()
            last_ms = self._purged_at_ms.get(current.queue_id)
            if last_ms is not None and 0 <= now_ms - last_ms < self._purge_interval_ms:
                raise PurgeQueueInProgress(
                    f"Only one PurgeQueue operation on {current.name} is allowed every 60 seconds."
                )
            state = self.kept.state_of_removed
            successor_id = await self._rows.purge(current, now_ms, state)
            self._remove(current)
            self._keep_aside(KeptQueue(current, now_ms, state, successor_id))
            successor = msgspec.structs.replace(
                current, queue_id=successor_id, version=current.version + 1
            )
            return current, self._keep(successor)

    def _removable(self, queue: QueueDefinition, *, force: bool) -> QueueDefinition:
        current = self._current(queue)
        if not force and current.tags.get(PROTECT_TAG) == PROTECT_ON:
            raise AccessDenied(
                f"The tag {PROTECT_TAG} protects queue {current.name} from being deleted or purged."
            )
        return current

    def _keep_aside(self, kept: KeptQueue) -> None:
        self.kept.put(kept)
        if kept.continued_as:
            self._purged_at_ms[kept.continued_as] = kept.deleted_at_ms

    async def restore_queue(self, queue_id: int) -> QueueDefinition:
        """Bring a deleted queue back as it was, under its id and receipt key, with the next version.

        Of a purged queue the messages are to be restored next, as its state says, and what is returned is the queue that
        continues it. Raises QueueDoesNotExist if there is none or its window is over, QueueNameExists if its name was
        taken meanwhile.
        """
        async with self._writing:
            kept = self.kept.get(queue_id)
            if kept is None or not self.kept.is_restorable(kept, self._now_ms()):
                raise QueueDoesNotExist()
            if kept.continued_as:
                return await self._begin_restoring(kept)
            queue = msgspec.structs.replace(kept.queue, version=kept.queue.version + 1)
            owner = (queue.account, queue.region, queue.name)
            if owner in self._queues:
                raise QueueNameExists(f"There is a new queue with the name {queue.name}.")
            await self._rows.restore(queue)
            self.kept.remove(queue_id)
            self._deleted_at_ms.pop(owner, None)
            return self._keep(queue)

    async def _begin_restoring(self, kept: KeptQueue) -> QueueDefinition:
        successor = self.successor(kept.queue.queue_id)
        if successor is None:
            raise QueueDoesNotExist(
                f"Queue {kept.queue.name} was deleted after this purge; restore it first."
            )
        await self._set_state([kept], KeptState.RESTORING)
        return successor

    async def end_restoring(self, queue_id: int, state: KeptState) -> None:
        """Stop restoring a purged queue: what is left of it is dropped, or kept to the end of its window."""
        async with self._writing:
            kept = self.kept.get(queue_id)
            if kept is not None and kept.state is KeptState.RESTORING:
                await self._set_state([kept], state)

    async def end_windows(self, now_ms: int) -> None:
        """Mark the kept queues whose window is over at `now_ms` (epoch), and those beyond KEPT_MAX, as to be dropped."""
        async with self._writing:
            await self._set_state(self.kept.over(now_ms), KeptState.DROPPING)

    async def give_up_oldest(self) -> None:
        """Mark the queue that was deleted or purged first as to be dropped, since the disk is short of space."""
        async with self._writing:
            oldest = self.kept.in_state(KeptState.KEPT)[-1:]
            await self._set_state(oldest, KeptState.DROPPING)

    async def forget_queue(self, queue_id: int) -> None:
        """Forget a queue whose messages are gone."""
        async with self._writing:
            kept = self.kept.get(queue_id)
            if kept is not None:
                await self._rows.forget(queue_id, kept.continued_as)
                self.kept.forget(queue_id)
                self._purged_at_ms.pop(queue_id, None)

    async def _set_state(self, kept: Sequence[KeptQueue], state: KeptState) -> None:
        if kept:
            await self._rows.set_state([each.queue.queue_id for each in kept], state)
        for each in kept:
            self.kept.put(each._replace(state=state))

    async def set_attributes(self, queue: QueueDefinition, given: Mapping[str, str]) -> None:
        """Change settings.

        Raises QueueDoesNotExist, InvalidParameterValue for a redrive policy whose target is missing or denies, and what
        `changed_attributes` and `check_policy_of_queue` raise.
        """
        async with self._writing:
            current = self._current(queue)
            attributes = changed_attributes(current.attributes, given)
            owner = (current.account, current.region, current.name)
            _check_policy(owner, given)
            self._check_redrive_policy(owner, given, attributes)
            await self._update(current, attributes=attributes)

    async def add_permission(
        self, queue: QueueDefinition, label: str, accounts: Sequence[str], actions: Sequence[str]
    ) -> None:
        """Add a statement to the queue's policy. Raises QueueDoesNotExist, and what `with_permission` raises."""
        async with self._writing:
            current = self._current(queue)
            policy = current.attributes.get("Policy")
            await self._set_policy(
                current, with_permission(policy, current.arn, label, accounts, actions)
            )

    async def remove_permission(self, queue: QueueDefinition, label: str) -> None:
        """Remove a statement; the last one takes the policy along.

        Raises QueueDoesNotExist, and what `without_permission` raises.
        """
        async with self._writing:
            current = self._current(queue)
            await self._set_policy(
                current, without_permission(current.attributes.get("Policy"), label)
            )

    async def _set_policy(self, current: QueueDefinition, policy: str | None) -> None:
        given = {"Policy": policy or ""}
        await self._update(current, attributes=changed_attributes(current.attributes, given))

    async def tag_queue(self, queue: QueueDefinition, tags: Mapping[str, str]) -> None:
        """Add or overwrite tags. Raises QueueDoesNotExist, and what `checked_tags` raises."""
        async with self._writing:
            current = self._current(queue)
            await self._update(current, tags=checked_tags(queue.name, current.tags, tags))

    async def untag_queue(self, queue: QueueDefinition, keys: Iterable[str]) -> None:
        """Remove tags; unknown keys are ignored. Raises QueueDoesNotExist."""
        async with self._writing:
            current = self._current(queue)
            gone = set(keys)
            kept = {key: value for key, value in current.tags.items() if key not in gone}
            await self._update(current, tags=kept)

    def _current(self, queue: QueueDefinition) -> QueueDefinition:
        """The queue as it is now, under a new id if it was purged. Raises QueueDoesNotExist."""
        current = self.successor(queue.queue_id)
        if current is None:
            raise QueueDoesNotExist()
        return current

    async def _update(
        self,
        current: QueueDefinition,
        *,
        attributes: dict[str, str] | None = None,
        tags: dict[str, str] | None = None,
    ) -> None:
        """Write the next version; only other attributes count as a modification."""
        attributes = current.attributes if attributes is None else attributes
        tags = current.tags if tags is None else tags
        modified = attributes != current.attributes
        queue = msgspec.structs.replace(
            current,
            version=current.version + 1,
            modified_at_ms=self._now_ms() if modified else current.modified_at_ms,
            attributes=attributes,
            tags=tags,
            settings=settings_of(attributes, tags),
        )
        await self._rows.update(queue)
        self._keep(queue)


def _arn(owner: QueueName) -> str:
    account, region, name = owner
    return f"arn:aws:sqs:{region}:{account}:{name}"


def _check_policy(owner: QueueName, given: Mapping[str, str]) -> None:
    """Refuse a policy that is given and not about this queue. Policies that are stored stay as they are."""
    if given.get("Policy"):
        check_policy_of_queue(given["Policy"], _arn(owner))
