"""Catalog: owns the definitions of queues, in SQLite, with all of it in memory for reading.

One transaction creates, changes, deletes or restores a queue, so there are no half-states; memory changes after it is on
disk. Messages belong to shards and never come here. aiosqlite runs SQLite in its own thread; no write is in the hot path.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiosqlite
import msgspec

from cluster.catalog_rows import CatalogRows, CatalogUnreadable, DeletedQueue, QueueName
from cluster.clock import Clock, Entropy
from cluster.keyring import Secrets
from visibility.attributes import (
    changed_attributes,
    checked_tags,
    conflicting_attribute,
    initial_attributes,
    settings_of,
)
from visibility.errors import QueueDeletedRecently, QueueDoesNotExist, QueueNameExists
from visibility.limits import QUEUE_REUSE_SECONDS
from visibility.model import QueueDefinition, Request
from visibility.naming import parse_arn
from visibility.permissions import with_permission, without_permission
from visibility.queue_policy import check_policy_of_queue
from visibility.redrive_policies import redrive_allowed, redrive_refusal

CATALOG_FILE = "catalog.sqlite"
_RECEIPT_KEY_BYTES = 32


class Catalog:
    """All queues of a node. Reads are synchronous and from memory; writes are durable when they return."""

    def __init__(
        self,
        rows: CatalogRows,
        *,
        clock: Clock,
        entropy: Entropy,
        shards: Iterable[int],
        deleted_name_wait_ms: int = QUEUE_REUSE_SECONDS * 1000,
        restore_window_ms: int = 0,
    ) -> None:
        self.restore_window_ms = restore_window_ms
        """How long a deleted queue can be restored; 0: it is gone at once."""
        self._rows = rows
        self._clock = clock
        self._entropy = entropy
        self._shards = sorted(shards)
        self._deleted_name_wait_ms = deleted_name_wait_ms
        self._writing = asyncio.Lock()
        self._queues: dict[QueueName, QueueDefinition] = {}
        self._by_id: dict[int, QueueDefinition] = {}
        self._deleted: dict[int, DeletedQueue] = {}
        self._deleted_at_ms: dict[QueueName, int] = {}
        self._targets: dict[int, tuple[QueueDefinition, QueueDefinition | None]] = {}
        """Answers of `dead_letter_queue` by the source's id, with the source they are for. Empty after every write."""
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
        for deleted in await self._rows.deleted_queues():
            self._deleted[deleted.queue.queue_id] = deleted
        self._deleted_at_ms = await self._rows.deleted_names()

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

    def queue_of_id(self, queue_id: int) -> QueueDefinition | None:
        """The queue with this id, None if it was deleted; a queue that can be restored counts as deleted."""
        return self._by_id.get(queue_id)

    def queue_of_arn(self, arn: str) -> QueueDefinition | None:
        """The queue an ARN names, None if it names none."""
        parsed = parse_arn(arn)
        return self._queues.get((parsed.account, parsed.region, parsed.name)) if parsed else None

    def dead_letter_queue(self, queue: QueueDefinition) -> QueueDefinition | None:
        """The queue that takes over what this one's redrive policy sends away, as things are now.

        None without a policy, and while its target is missing, of another account, region or type, or does not allow this
        source. Constant time, for the hot path.
        """
        known = self._targets.get(queue.queue_id)
        if known is None or known[0] is not queue:
            known = self._targets[queue.queue_id] = (queue, self._find_target(queue))
        return known[1]

    def _find_target(self, queue: QueueDefinition) -> QueueDefinition | None:
        policy = queue.settings.redrive_policy
        target = None if policy is None else self.queue_of_arn(policy.dead_letter_target_arn)
        if (
            target is None
            or (target.account, target.region) != (queue.account, queue.region)
            or target.settings.fifo is not queue.settings.fifo
            or not redrive_allowed(target.attributes, queue.arn)
        ):
            return None
        return target

    def renewed(self, request: Request) -> Request | None:
        """The request with the definitions of now; None if its queue is gone."""
        queue = self._by_id.get(request.queue.queue_id)
        if queue is None:
            return None
        target = self.dead_letter_queue(queue)
        if queue is request.queue and target is request.dead_letter_queue:
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
        """The queues of the target's account and region whose redrive policy names it, allowed or not, by name."""
        sources = [
            queue
            for queue in self
            if (policy := queue.settings.redrive_policy)
            and (queue.account, queue.region) == (target.account, target.region)
            and policy.dead_letter_target_arn.endswith(f":{target.name}")
            and self.queue_of_arn(policy.dead_letter_target_arn) is self._by_id.get(target.queue_id)
        ]
        return sorted(sources, key=lambda queue: queue.name)

    def deleted_queues(self) -> list[DeletedQueue]:
        """The deleted queues that can be restored now, the latest first."""
        now_ms = self._now_ms()
        kept = [deleted for deleted in self._deleted.values() if not self._is_over(deleted, now_ms)]
        return sorted(kept, key=lambda each: (each.deleted_at_ms, each.queue.queue_id))[::-1]

    def _is_over(self, deleted: DeletedQueue, now_ms: int) -> bool:
        """A clock that was turned back does not shorten the window; a window of 0 is always over."""
        return max(0, now_ms - deleted.deleted_at_ms) >= self.restore_window_ms

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

    async def delete_queue(self, queue: QueueDefinition) -> None:
        """Take a queue away; its name is taken for 60 s. With a restore window its definition is kept aside.

        Raises QueueDoesNotExist if another call was first.
        """
        async with self._writing:
            current = self._current(queue)
            now_ms = self._now_ms()
            keep = self.restore_window_ms > 0
            await self._rows.delete(current, now_ms, keep=keep)
            self._targets.clear()
            owner = (current.account, current.region, current.name)
            del self._queues[owner]
            del self._by_id[current.queue_id]
            self._deleted_at_ms[owner] = now_ms
            if keep:
                self._deleted[current.queue_id] = DeletedQueue(current, now_ms)

    async def restore_queue(self, queue_id: int) -> QueueDefinition:
        """Bring a deleted queue back as it was, under its id and receipt key, with the next version.

        Raises QueueDoesNotExist if there is none or its window is over, QueueNameExists if its name was taken meanwhile.
        """
        async with self._writing:
            deleted = self._deleted.get(queue_id)
            if deleted is None or self._is_over(deleted, self._now_ms()):
                raise QueueDoesNotExist()
            queue = msgspec.structs.replace(deleted.queue, version=deleted.queue.version + 1)
            owner = (queue.account, queue.region, queue.name)
            if owner in self._queues:
                raise QueueNameExists(f"There is a new queue with the name {queue.name}.")
            await self._rows.restore(queue)
            del self._deleted[queue_id]
            self._deleted_at_ms.pop(owner, None)
            return self._keep(queue)

    async def take_expired_deletions(self, now_ms: int) -> list[QueueDefinition]:
        """Forget the deleted queues whose window is over at `now_ms` (epoch); their shards are to drop them next."""
        async with self._writing:
            over = [each.queue for each in self._deleted.values() if self._is_over(each, now_ms)]
            if over:
                await self._rows.forget([queue.queue_id for queue in over])
            for queue in over:
                del self._deleted[queue.queue_id]
            return over

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
        """The queue as it is now. Raises QueueDoesNotExist."""
        current = self._by_id.get(queue.queue_id)
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

    def _keep(self, queue: QueueDefinition) -> QueueDefinition:
        self._targets.clear()
        self._queues[queue.account, queue.region, queue.name] = queue
        self._by_id[queue.queue_id] = queue
        return queue


def _arn(owner: QueueName) -> str:
    account, region, name = owner
    return f"arn:aws:sqs:{region}:{account}:{name}"


def _check_policy(owner: QueueName, given: Mapping[str, str]) -> None:
    """Refuse a policy that is given and not about this queue. Policies that are stored stay as they are."""
    if given.get("Policy"):
        check_policy_of_queue(given["Policy"], _arn(owner))
