"""The queues as they are defined now: what requests read. In memory, synchronous; constant time on
the hot path.

The catalog's watch alone changes it, a transaction at a time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from cluster.catalog.catalog_records import (
    DELETED,
    FREED,
    LAST_ID,
    QUEUES,
    REMOVED,
    Entry,
    KeptQueue,
    KeptState,
    QueueName,
    deleted_key,
    name_in,
    name_of,
)
from cluster.catalog.deleted_queues import KeptQueues
from visibility.contract.errors import QueueDoesNotExist
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.naming import parse_arn
from visibility.contract.queue_policy import may_admit_everyone
from visibility.contract.redrive_policies import redrive_allowed
from visibility.rules.noted_parts import note_of, parts_of

_LAST_CHARACTER = "\U0010ffff"


class Kind(Enum):
    """Kind of a change."""

    CHANGED = "changed"  # other settings, or restored
    DELETED = "deleted"
    PURGED = "purged"  # it continues under another id
    RESTORING = "restoring"  # the messages of a purged queue are to be put back
    SPLIT = "split"  # it has parts now
    PARTS = "parts"  # others than before
    DRAINING = "draining"  # a part takes no messages any more


class QueueChange(NamedTuple):
    """A change of a queue, or of a part, that its shard must hear of."""

    kind: Kind
    queue: QueueDefinition
    successor: QueueDefinition | None = None
    """The queue that continues a purged one."""


DrainingShards = Callable[[], Collection[int]]
"""Shards of clusters that are being emptied: no part comes to them."""


class QueueView:
    """All queues of a cluster, and those that were deleted or purged."""

    def __init__(self, restore_window_ms: int, draining_shards: DrainingShards = tuple) -> None:
        self.kept = KeptQueues(restore_window_ms)
        """Queues that were deleted or purged."""
        self.revision = 0
        """The catalog's revision that is shown."""
        self.highest_queue_id = 0
        """The last queue id that was issued; deleted queues count."""
        self.freed_at_ms: dict[QueueName, int] = {}
        """Times at which names were given up, as far as they may still have to wait."""
        self.purged_at_ms: dict[int, int] = {}
        """Time of the last purge, by the id of the queue that continues."""
        self.queues_of_shard: Counter[int] = Counter()
        """The number of queues of each shard."""
        self._queues_of_account: Counter[str] = Counter()
        self.removed_at_ms: dict[int, int] = {}
        """Shards of clusters that were removed: no queue and no part comes to them."""
        self.draining_shards = draining_shards
        self._queues: dict[QueueName, QueueDefinition] = {}
        self._names: dict[tuple[str, str], list[str]] = {}
        """The sorted names of an account's queues in a region, once they were asked for. Empty
        after a queue came or went there."""
        self._by_id: dict[int, QueueDefinition] = {}
        self.split: dict[QueueName, QueueDefinition] = {}
        """Those with parts."""
        self.open_to_everyone: set[int] = set()
        """Ids of those whose policy may admit requests without a signature."""
        self.on_changes: list[Callable[[], None]] = []
        """Called with each transaction, once it is shown."""
        self._revisions: dict[str, int] = {}
        self._targets: dict[int, tuple[QueueDefinition, QueueDefinition | None]] = {}
        """Answers of `dead_letter_queue` by the source's id, with the source they are for. Empty
        after every change."""

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

    def all_queues(self) -> Iterator[QueueDefinition]:
        """All usable queues; of one with parts, each part."""
        for queue in self:
            if queue.parts:
                yield from queue.all_parts()
            else:
                yield queue

    def find(self, name: QueueName) -> QueueDefinition | None:
        """The queue of that name, None if there is none."""
        return self._queues.get(name)

    @property
    def accounts(self) -> int:
        """The number of accounts that have queues."""
        return len(self._queues_of_account)

    def queue_of_id(self, queue_id: int) -> QueueDefinition | None:
        """The queue with this id, None if it was deleted; a queue that can be restored counts as
        deleted."""
        return self._by_id.get(queue_id)

    def queue_of_arn(self, arn: str) -> QueueDefinition | None:
        """The queue an ARN names, None if it names none."""
        parsed = parse_arn(arn)
        return self._queues.get((parsed.account, parsed.region, parsed.name)) if parsed else None

    def keeps(self, arn: str) -> bool:
        """True if an ARN names a queue, or one that was deleted and can be restored."""
        return self.queue_of_arn(arn) is not None or self.kept.has_deleted(arn)

    def dead_letter_queue(self, queue: QueueDefinition) -> QueueDefinition | None:
        """The queue that takes over what this one's redrive policy sends away, as things are now.

        None without a policy, and while its target is missing, of another account, region or type,
        or does not allow this source. Constant time, for the hot path.
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
        """The request with the definitions of now; None if its queue is gone. A destination that is
        gone stays as it was."""
        queue = self.successor(request.queue.queue_id)
        if queue is None:
            return None
        target, to = self.dead_letter_queue(queue), request.destination
        if to is not None:
            to = self.successor(to.queue_id) or to
        if (
            queue is request.queue
            and target is request.dead_letter_queue
            and to is request.destination
        ):
            return request
        return msgspec.structs.replace(
            request, queue=queue, dead_letter_queue=target, destination=to
        )

    def names(self, account: str, region: str, prefix: str) -> Sequence[str]:
        """Names of an account's queues in a region, sorted. To make the list anew for each page
        would hold up a host of many queues."""
        asked = (account, region)
        names = self._names.get(asked)
        if names is None:
            names = sorted(name for (owner, place, name) in self._queues if (owner, place) == asked)
            if names:
                self._names[asked] = names
        if not prefix:
            return names
        return names[bisect_left(names, prefix) : bisect_left(names, prefix + _LAST_CHARACTER)]

    def dead_letter_sources(self, target: QueueDefinition) -> list[QueueDefinition]:
        """The queues of the target's account and region whose redrive policy names it, allowed or
        not, by name."""
        sources = [
            queue
            for queue in self
            if (policy := queue.settings.redrive_policy)
            and (queue.account, queue.region) == (target.account, target.region)
            and policy.dead_letter_target_arn.endswith(f":{target.name}")
            and self.queue_of_arn(policy.dead_letter_target_arn) is self._by_id.get(target.queue_id)
        ]
        return sorted(sources, key=lambda queue: queue.name)

    def successor(self, queue_id: int) -> QueueDefinition | None:
        """The queue with this id, or the one that continues it after purges; None if it was
        deleted."""
        while (queue := self._by_id.get(queue_id)) is None:
            kept = self.kept.get(queue_id)
            if kept is None or not kept.continued_as:
                return None
            queue_id = kept.continued_as
        return queue

    def continued(self) -> list[tuple[int, int]]:
        """Pairs of ids, ascending: each purged queue that is kept, and its continuation."""
        pairs = [(each.queue.queue_id, each.continued_as) for each in self.kept]
        return sorted(pair for pair in pairs if pair[1])

    # -- records -----------------------------------------------------------------------------------

    def revision_of(self, key: str) -> int:
        """The revision of a record, 0 if there is none."""
        return self._revisions.get(key, 0)

    def entry(self, key: str) -> Entry | None:
        """The content of a record, None if there is none."""
        if key.startswith(QUEUES):
            return self._queues.get(name_in(key))
        if key.startswith(DELETED):
            return self.kept.get(int(key.removeprefix(DELETED)))
        if key.startswith(FREED):
            return self.freed_at_ms.get(name_in(key))
        if key.startswith(REMOVED):
            return self.removed_at_ms.get(int(key.removeprefix(REMOVED)))
        return self.highest_queue_id or None

    def load(self, revision: int, entries: Mapping[str, tuple[int, Entry]]) -> None:
        """Begin with these records, each with its revision."""
        for key, (at, entry) in entries.items():
            self._put(key, entry)
            self._revisions[key] = at
        self.revision = revision

    def apply(
        self,
        revision: int,
        entries: Mapping[str, Entry | None],
        revisions: Mapping[str, int] = MappingProxyType({}),
    ) -> list[QueueChange]:
        """Apply a transaction, or the difference between two states, whose records have revisions
        of their own. Returns the changes that shards must hear of, older queues first."""
        before = {key: self.entry(key) for key in entries}
        for key, entry in entries.items():
            if entry is None:
                self._revisions.pop(key, None)
            else:
                self._revisions[key] = revisions.get(key, revision)
        self.revision = revision
        self.show(entries)
        heard: list[QueueChange] = []
        for key, entry in entries.items():
            if isinstance(entry, KeptQueue):
                heard += self._changes_of_kept(before[key], entry)
            elif isinstance(entry, QueueDefinition):
                is_back = before.get(deleted_key(entry.queue_id)) is not None
                heard += _changes(before[key], entry, is_back=is_back)
        return sorted(heard, key=lambda change: change.queue.queue_id)

    def show(self, entries: Mapping[str, Entry | None]) -> None:
        """Show these entries; the revisions of their records stay."""
        self._targets.clear()
        for key, entry in entries.items():
            # All before the first is shown: a restored etcd may have given an id to another queue.
            if entry is None:
                self._remove(key)
            elif key.startswith(QUEUES) and (before := self._queues.get(name_in(key))) is not None:
                self._forget(before)
        for key, entry in entries.items():
            if entry is not None:
                self._put(key, entry)
        for call in self.on_changes:
            call()

    def _changes_of_kept(self, was: Entry | None, now: KeptQueue) -> Iterator[QueueChange]:
        was_kept = was if isinstance(was, KeptQueue) else None
        # A deleted queue may have been restored and purged since, all in one difference.
        if now.continued_as and not (was_kept and was_kept.continued_as):
            yield QueueChange(Kind.PURGED, now.queue, self._continuing(now.continued_as))
        elif was_kept is None:
            yield QueueChange(Kind.DELETED, now.queue)
        if now.state is KeptState.RESTORING and not (was_kept and was_kept.state is now.state):
            yield QueueChange(Kind.RESTORING, now.queue)

    def _continuing(self, queue_id: int) -> QueueDefinition:
        """A queue that continues another, and may have been purged or deleted itself since."""
        kept = self.kept.get(queue_id)
        return kept.queue if kept is not None else self._by_id[queue_id]

    def _put(self, key: str, entry: Entry) -> None:
        if isinstance(entry, QueueDefinition):
            if name_of(entry) not in self._queues:
                self._names.pop((entry.account, entry.region), None)
            self._count(entry, 1)
            self._queues[name_of(entry)] = self._by_id[entry.queue_id] = entry
            if may_admit_everyone(entry.attributes.get("Policy")):
                self.open_to_everyone.add(entry.queue_id)
            if entry.parts:
                self.split[name_of(entry)] = entry
                for part in entry.parts[1:]:
                    self._by_id[part.queue_id] = entry.of_part(part)
        elif isinstance(entry, KeptQueue):
            self.kept.put(entry)
            if entry.continued_as:
                latest_ms = self.purged_at_ms.get(entry.continued_as, entry.deleted_at_ms)
                self.purged_at_ms[entry.continued_as] = max(latest_ms, entry.deleted_at_ms)
        elif key == LAST_ID:
            self.highest_queue_id = entry
        elif key.startswith(REMOVED):
            self.removed_at_ms[int(key.removeprefix(REMOVED))] = entry
        else:
            self.freed_at_ms[name_in(key)] = entry

    def _count(self, queue: QueueDefinition, change: int) -> None:
        self._queues_of_account[queue.account] += change
        if not self._queues_of_account[queue.account]:
            del self._queues_of_account[queue.account]
        self.queues_of_shard[queue.shard] += change
        for part in queue.parts[1:]:
            self.queues_of_shard[part.shard] += change

    def _forget(self, queue: QueueDefinition) -> None:
        self._count(queue, -1)
        self._by_id.pop(queue.queue_id, None)
        self.open_to_everyone.discard(queue.queue_id)
        self.split.pop(name_of(queue), None)
        for part in queue.parts[1:]:
            self._by_id.pop(part.queue_id, None)

    def _remove(self, key: str) -> None:
        if key.startswith(QUEUES):
            queue = self._queues.pop(name_in(key), None)
            if queue is not None:
                self._forget(queue)
                self._names.pop((queue.account, queue.region), None)
        elif key.startswith(DELETED):
            queue_id = int(key.removeprefix(DELETED))
            self.kept.remove(queue_id)
            self.purged_at_ms.pop(queue_id, None)
        elif key.startswith(FREED):
            self.freed_at_ms.pop(name_in(key), None)


def _changes(was: Entry | None, now: QueueDefinition, *, is_back: bool) -> Iterator[QueueChange]:
    """All that each part of a queue must hear. A part that drains hears it with each change: the
    first time may have been before its shard could close it."""
    former = was.queue_id if isinstance(was, QueueDefinition) else 0
    same = [each for each in now.all_parts() if each.queue_id == former]
    is_same = bool(same)
    is_changed = is_back or (is_same and was.settings != now.settings)  # type: ignore[union-attr]
    note = note_of(now)
    has_others = note is not None and not (
        isinstance(was, QueueDefinition) and note.has_same_parts(parts_of(was))
    )
    if not (is_changed or now.parts or has_others):
        return
    if is_same and not was.parts and now.parts:  # type: ignore[union-attr]
        yield QueueChange(Kind.SPLIT, same[0])
    for queue in now.all_parts():
        if has_others:
            yield QueueChange(Kind.PARTS, queue)
        if is_changed:
            yield QueueChange(Kind.CHANGED, queue)
        if now.parts and not queue.part.is_open:
            yield QueueChange(Kind.DRAINING, queue)
