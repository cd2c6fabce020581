"""The rules of creating, changing, deleting, purging and restoring queues: pure functions of the
view and the request.

Each returns the records to write, or raises AWS's error. A Decision holds for the records as the
view shows them: the catalog commits it on the condition that those it writes have not changed
since.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from auth.auth_errors import AccessDenied
from cluster.catalog.catalog_records import (
    LAST_ID,
    Entries,
    KeptQueue,
    KeptState,
    QueueName,
    deleted_key,
    freed_key,
    name_of,
    queue_key,
    removed_key,
)
from cluster.catalog.queue_view import QueueView
from cluster.coordination.coordination import Outcome, Transaction
from visibility.contract.attributes import (
    changed_attributes,
    checked_tags,
    conflicting_attribute,
    initial_attributes,
    settings_of,
)
from visibility.contract.errors import (
    InvalidParameterValue,
    PurgeQueueInProgress,
    QueueDeletedRecently,
    QueueDoesNotExist,
    QueueNameExists,
    ServiceUnavailable,
    UnsupportedOperation,
)
from visibility.contract.length_tags import check_overflow, parts_without_room
from visibility.contract.levelling_tags import keeps_whole
from visibility.contract.limits import PURGE_INTERVAL_SECONDS, QUEUE_REUSE_SECONDS
from visibility.contract.model import QueueDefinition
from visibility.contract.naming import parse_arn, shown_arn
from visibility.contract.on_delete_tag import ON_DELETE_TAG
from visibility.contract.permissions import with_permission, without_permission
from visibility.contract.queue_policy import check_policy_of_queue
from visibility.contract.redrive_policies import redrive_allowed, redrive_refusal
from visibility.contract.sender_order_tags import LATE_QUEUE_TAG, check_delay, takes_late
from visibility.contract.tags import DELETION_PROTECTION_TAG, PROTECT_ON, PROTECT_TAG, own_tags_of

AT_ONCE = 30
"""Limit of the records that a decision cleans up: what etcd takes in one transaction, which is a
hundred records, and 1.5 MB even if each is a queue with a long policy."""


ALL_SHARDS: Container[int] = range(1 << 31)
_CLOCKS_MS = 20_000
"""Bound of the difference between two hosts' clocks: each is 10 s from the median at most (rule 29
of cluster/RULES.md)."""


class Waits(NamedTuple):
    """Waiting times that AWS imposes on clients."""

    deleted_name_ms: int = QUEUE_REUSE_SECONDS * 1000
    purge_ms: int = PURGE_INTERVAL_SECONDS * 1000


Commit = Callable[[Transaction], Awaitable[Outcome]]


class Decision(NamedTuple):
    """Records to write; none if nothing has to change."""

    entries: Entries
    queue_id: int = 0
    """Id of the queue to return, as it is afterwards; 0 for none."""
    commit: Commit | None = None
    """Commits the transaction, whose keys are those of the catalog, together with records that are
    not the catalog's; None for the catalog's own way."""

    def made(self) -> QueueDefinition | None:
        """The queue to return as the records have it, if they do."""
        written = (each for each in self.entries.values() if isinstance(each, QueueDefinition))
        return next((queue for queue in written if queue.queue_id == self.queue_id), None)


class NewQueue(NamedTuple):
    """A queue as CreateQueue asks for it, with the fields that the service adds."""

    name: QueueName
    attributes: Mapping[str, str]
    tags: Mapping[str, str]
    receipt_key: bytes
    shards: Sequence[int]
    """Shards that a new queue may be placed on."""


# -- create ----------------------------------------------------------------------------------------


def create(view: QueueView, new: NewQueue, now_ms: int, waits: Waits) -> Decision:
    """The new queue, or the existing one if no given attribute differs.

    Raises QueueNameExists, QueueDeletedRecently, InvalidParameterValue for a redrive policy whose
    target is missing or denies, and what `initial_attributes` and `check_policy_of_queue` raise.
    """
    complete = initial_attributes(new.name[2], new.attributes)
    _check_policy(new.attributes)
    existing = view.find(new.name)
    if existing is not None:
        differs = conflicting_attribute(existing.attributes, new.attributes)
        if differs is None:
            return Decision({}, existing.queue_id)
        raise QueueNameExists(
            "A queue already exists with the same name and a different value for attribute "
            f"{differs}"
        )
    _check_redrive_policy(view, new.name, new.attributes, complete)
    check_delay(complete, new.tags)
    freed_at_ms = view.freed_at_ms.get(new.name)
    if freed_at_ms is not None and _is_within(waits.deleted_name_ms, freed_at_ms, now_ms):
        raise QueueDeletedRecently()
    shard = new.shards[len(view) % len(new.shards)]
    if shard in view.removed_at_ms:  # this process has not heard of it yet
        raise ServiceUnavailable()
    queue_id = view.highest_queue_id + 1
    queue = QueueDefinition(
        queue_id,
        *new.name,
        version=1,
        shard=shard,
        created_at_ms=now_ms,
        modified_at_ms=now_ms,
        receipt_key=new.receipt_key,
        attributes=dict(complete),
        tags=dict(new.tags),
        settings=settings_of(complete, new.tags),
        deduplication_scope=complete.get("DeduplicationScope", ""),
    )
    _check_late_queue(view, queue, new.tags)
    check_overflow(queue.settings, new.tags, queue.arn)
    entries: Entries = {queue_key(new.name): queue, LAST_ID: queue_id}
    if freed_at_ms is not None:
        entries[freed_key(new.name)] = None
    return Decision(entries, queue_id)


def raise_ids(view: QueueView, at_least: int) -> Decision:
    """Ids up to this one count as issued: a shard has queues that these records do not know."""
    return Decision({LAST_ID: at_least} if at_least > view.highest_queue_id else {})


def remove_shards(view: QueueView, shards: Iterable[int], now_ms: int) -> Decision:
    """Mark shards that get no more queues. One id is skipped, so earlier decisions about new queues
    or parts conflict and are made again."""
    entries: Entries = {removed_key(shard): now_ms for shard in shards}
    return Decision(entries | {LAST_ID: view.highest_queue_id + 1})


def _check_redrive_policy(
    view: QueueView, name: QueueName, given: Mapping[str, str], complete: Mapping[str, str]
) -> None:
    """A policy that is given names a queue of its account and region that allows it; a queue may
    name itself.

    `complete` are all attributes the queue will have. That both are of one type is checked by name,
    with them.
    """
    text = given.get("RedrivePolicy")
    policy = settings_of(complete).redrive_policy
    if not text or policy is None:
        return
    parsed = parse_arn(policy.dead_letter_target_arn)
    place = None if parsed is None else (parsed.account, parsed.region, parsed.name)
    target = view.find(place) if place is not None else None
    there = complete if place == name else target.attributes if target else None
    if place is None or place[:2] != name[:2] or there is None:
        raise redrive_refusal(text, "Dead letter target does not exist.")
    source_arn = _arn(name)
    if not redrive_allowed(there, source_arn):
        raise redrive_refusal(
            text,
            f"Queue {policy.dead_letter_target_arn} does not allow the queue {source_arn} "
            "to use it as a dead-letter queue.",
        )


def _check_late_queue(view: QueueView, queue: QueueDefinition, given: Mapping[str, str]) -> None:
    """A late queue that is given exists, and fits the queue."""
    arn = given.get(LATE_QUEUE_TAG)
    if arn is None:
        return
    late = view.queue_of_arn(arn)
    if late is None or not takes_late(late, queue):
        raise InvalidParameterValue(
            f"Value {arn} for tag {LATE_QUEUE_TAG} is invalid. It must be another standard queue "
            "of the same account and region, with no order of its own."
        )


# -- change ----------------------------------------------------------------------------------------


def set_attributes(
    view: QueueView, queue: QueueDefinition, given: Mapping[str, str], now_ms: int
) -> Decision:
    """Other settings.

    Raises QueueDoesNotExist, InvalidParameterValue for a redrive policy whose target is missing or
    denies, and for larger messages than a part has room for, and what `changed_attributes` and
    `check_policy_of_queue` raise.
    """
    current = _current(view, queue)
    attributes = changed_attributes(current.attributes, given)
    size = settings_of(attributes).maximum_message_size
    if size > current.settings.maximum_message_size:
        _check_room(current, current.settings.own_tags, size)
    name = name_of(current)
    _check_policy(given)
    _check_redrive_policy(view, name, given, attributes)
    check_delay(attributes, current.tags)
    check_overflow(settings_of(attributes), current.tags, current.arn)
    return _changed(current, now_ms, attributes=attributes)


def add_permission(
    view: QueueView,
    queue: QueueDefinition,
    label: str,
    accounts: Sequence[str],
    actions: Sequence[str],
    now_ms: int,
) -> Decision:
    """One more statement in the queue's policy. Raises QueueDoesNotExist, and what
    `with_permission` raises."""
    current = _current(view, queue)
    policy = current.attributes.get("Policy")
    arn = shown_arn(current.arn)
    return _with_policy(current, with_permission(policy, arn, label, accounts, actions), now_ms)


def remove_permission(view: QueueView, queue: QueueDefinition, label: str, now_ms: int) -> Decision:
    """One statement less; the last one takes the policy along.

    Raises QueueDoesNotExist, and what `without_permission` raises.
    """
    current = _current(view, queue)
    return _with_policy(
        current, without_permission(current.attributes.get("Policy"), label), now_ms
    )


def _with_policy(current: QueueDefinition, policy: str | None, now_ms: int) -> Decision:
    given = {"Policy": policy or ""}
    return _changed(current, now_ms, attributes=changed_attributes(current.attributes, given))


def add_tags(
    view: QueueView, queue: QueueDefinition, tags: Mapping[str, str], now_ms: int
) -> Decision:
    """New or overwritten tags.

    Raises QueueDoesNotExist, InvalidParameterValue for tags that do not fit the queue, and what
    `checked_tags` raises.
    """
    current = _current(view, queue)
    changed = checked_tags(queue.name, current.tags, tags)
    check_delay(current.attributes, changed)
    _check_late_queue(view, current, tags)
    check_overflow(current.settings, changed, current.arn)
    own_tags = own_tags_of(changed)
    if current.parts and (reason := keeps_whole(own_tags)):
        raise _has_parts(current, reason)
    _check_room(current, own_tags, current.settings.maximum_message_size)
    return _changed(current, now_ms, tags=changed)


def _check_room(current: QueueDefinition, own_tags: Mapping[str, str], message_size: int) -> None:
    """Raises InvalidParameterValue if the parts of a queue have no room for such a message."""
    if reason := parts_without_room(own_tags, len(current.parts), message_size):
        raise _has_parts(current, reason)


def _has_parts(current: QueueDefinition, reason: str) -> InvalidParameterValue:
    return InvalidParameterValue(f"Queue {current.name} has several parts, and {reason}.")


def remove_tags(
    view: QueueView, queue: QueueDefinition, keys: Iterable[str], now_ms: int
) -> Decision:
    """Without these tags; unknown keys are ignored. Raises QueueDoesNotExist."""
    current = _current(view, queue)
    gone = set(keys)
    left = {key: value for key, value in current.tags.items() if key not in gone}
    return _changed(current, now_ms, tags=left)


def _changed(
    current: QueueDefinition,
    now_ms: int,
    *,
    attributes: dict[str, str] | None = None,
    tags: dict[str, str] | None = None,
) -> Decision:
    """The next version; only other attributes count as a modification."""
    attributes = current.attributes if attributes is None else attributes
    tags = current.tags if tags is None else tags
    modified = attributes != current.attributes
    queue = msgspec.structs.replace(
        current,
        version=current.version + 1,
        modified_at_ms=now_ms if modified else current.modified_at_ms,
        attributes=attributes,
        tags=tags,
        settings=settings_of(attributes, tags),
    )
    return Decision({queue_key(name_of(queue)): queue}, queue.queue_id)


def _current(view: QueueView, queue: QueueDefinition) -> QueueDefinition:
    """The queue as it is now, under a new id if it was purged. Raises QueueDoesNotExist."""
    current = view.successor(queue.queue_id)
    if current is not None and not current.is_home:  # that part was the home once
        current = view.find(name_of(current))
    if current is None:
        raise QueueDoesNotExist()
    return current


# -- delete and purge ------------------------------------------------------------------------------


def delete(view: QueueView, queue: QueueDefinition, now_ms: int, *, force: bool) -> Decision:
    """The queue becomes a tombstone, and its name has to wait. It can be restored within the
    window.

    Raises QueueDoesNotExist if another call was first, AccessDenied for a protected queue without
    `force`.
    """
    current = _removable(view, queue, force=force)
    if not force and current.tags.get(DELETION_PROTECTION_TAG) == PROTECT_ON:
        raise AccessDenied(
            f"The tag {DELETION_PROTECTION_TAG} protects queue {current.name} from being deleted."
        )
    state, name = view.kept.state_of_removed, name_of(current)
    over_ms = now_ms - QUEUE_REUSE_SECONDS * 1000
    over = (each for each, at_ms in view.freed_at_ms.items() if at_ms < over_ms)
    entries: Entries = {freed_key(each): None for each in islice(over, AT_ONCE)}
    entries |= {
        deleted_key(each.queue_id): KeptQueue(each, now_ms, state) for each in current.all_parts()
    }
    entries |= {queue_key(name): None, freed_key(name): now_ms}
    return Decision(entries)


def purge(
    view: QueueView, queue: QueueDefinition, now_ms: int, waits: Waits, *, force: bool = False
) -> Decision:
    """The queue goes on under a new id, where it is empty, and becomes a tombstone under its old
    one; so does each of its parts, under the same number, in one transaction (rule 44).

    Raises QueueDoesNotExist, PurgeQueueInProgress, AccessDenied for a protected queue without
    `force`.
    """
    current = _removable(view, queue, force=force)
    last_ms = view.purged_at_ms.get(current.queue_id)
    if last_ms is not None and _is_within(waits.purge_ms, last_ms, now_ms):
        raise PurgeQueueInProgress(
            f"Only one PurgeQueue operation on {current.name} is allowed every 60 seconds."
        )
    first_id, state = view.highest_queue_id + 1, view.kept.state_of_removed
    purged = current.all_parts()
    parts = [
        msgspec.structs.replace(part, queue_id=queue_id)
        for queue_id, part in enumerate(current.parts, first_id)
    ]
    successor = msgspec.structs.replace(
        current, queue_id=first_id, version=current.version + 1, parts=tuple(parts)
    )
    entries: Entries = {
        deleted_key(each.queue_id): KeptQueue(_purged(each), now_ms, state, queue_id)
        for queue_id, each in enumerate(purged, first_id)
    }
    entries[queue_key(name_of(successor))] = successor
    entries[LAST_ID] = first_id + len(purged) - 1
    return Decision(entries, first_id)


def _purged(queue: QueueDefinition) -> QueueDefinition:
    """The tombstone's queue: a purge is no deletion, even if the tombstone outlives the queue that
    continues it."""
    if ON_DELETE_TAG not in queue.tags:
        return queue
    tags = {key: value for key, value in queue.tags.items() if key != ON_DELETE_TAG}
    settings = msgspec.structs.replace(queue.settings, own_tags=own_tags_of(tags))
    return msgspec.structs.replace(queue, tags=tags, settings=settings)


def _removable(view: QueueView, queue: QueueDefinition, *, force: bool) -> QueueDefinition:
    current = _current(view, queue)
    if not force and current.tags.get(PROTECT_TAG) == PROTECT_ON:
        raise AccessDenied(
            f"The tag {PROTECT_TAG} protects queue {current.name} from being deleted or purged."
        )
    return current


# -- restore and forget ----------------------------------------------------------------------------


def obstacle(view: QueueView, kept: KeptQueue) -> str | None:
    """The reason why it cannot be restored now, or comes back no further; None if there is none."""
    queue = kept.queue
    if kept.continued_as and view.successor(queue.queue_id) is None:
        return f"Queue {queue.name} was deleted after this purge; restore it first."
    if kept.continued_as and queue.settings.fifo and queue.parts:
        return (  # a closed part may not get messages back
            f"FIFO queue {queue.name} had several parts when it was purged: its messages "
            "cannot be restored."
        )
    return None


def restore(view: QueueView, queue_id: int, now_ms: int) -> Decision:
    """A deleted queue is back as it was, under its id and receipt key, with the next version.

    Of a purged queue the messages are to be restored next, as its state says, and the queue that
    continues it is returned. Raises QueueDoesNotExist if there is none or its window is over,
    QueueNameExists if its name was taken meanwhile, UnsupportedOperation for a FIFO queue that was
    purged while it had several parts.
    """
    kept = view.kept.get(queue_id)
    if kept is not None and kept.state is KeptState.RESTORING:
        back = f"The messages of queue {kept.queue.name} come back already."
        raise QueueDoesNotExist(obstacle(view, kept) or back)
    if kept is None or not kept.queue.is_home or not view.kept.is_restorable(kept, now_ms):
        raise QueueDoesNotExist()
    if kept.continued_as:
        successor = view.successor(queue_id)
        if successor is None:
            raise QueueDoesNotExist(obstacle(view, kept))
        if (reason := obstacle(view, kept)) is not None:
            raise UnsupportedOperation(reason)
        together = view.kept.together(kept)
        return Decision(set_state(together, KeptState.RESTORING).entries, successor.queue_id)
    queue = msgspec.structs.replace(kept.queue, version=kept.queue.version + 1)
    name = name_of(queue)
    if view.find(name) is not None:
        raise QueueNameExists(f"There is a new queue with the name {queue.name}.")
    entries: Entries = {deleted_key(each.queue.queue_id): None for each in view.kept.together(kept)}
    entries[queue_key(name)] = queue
    if name in view.freed_at_ms:
        entries[freed_key(name)] = None
    return Decision(entries, queue_id)


def end_restoring(view: QueueView, queue_id: int, state: KeptState) -> Decision:
    """The rest of a purged queue is dropped, or kept to the end of its window."""
    kept = view.kept.get(queue_id)
    is_restoring = kept is not None and kept.state is KeptState.RESTORING
    return set_state([kept] if kept is not None and is_restoring else [], state)


def set_state(kept: Iterable[KeptQueue], state: KeptState) -> Decision:
    """Deleted or purged queues in another state."""
    return Decision({deleted_key(k.queue.queue_id): k._replace(state=state) for k in kept})


def windows_over(view: QueueView, now_ms: int, shards: Container[int]) -> list[KeptQueue]:
    """The kept queues of these shards whose window is over."""
    return [each for each in view.kept.over(now_ms) if each.queue.shard in shards]


def end_windows(view: QueueView, now_ms: int, shards: Container[int]) -> Decision:
    """Some of these are to be dropped."""
    over = windows_over(view, now_ms, shards)
    return set_state(view.kept.all_together(over, AT_ONCE), KeptState.DROPPING)


def forget(view: QueueView, queue_id: int) -> Decision:
    """Without the tombstone; a queue that this one continued is continued by its successor, or
    counts as deleted."""
    forgotten = view.kept.get(queue_id)
    if forgotten is None:
        return Decision({})
    entries: Entries = {
        deleted_key(kept.queue.queue_id): kept._replace(continued_as=forgotten.continued_as)
        for kept in view.kept
        if kept.continued_as == queue_id
    }
    return Decision({**entries, deleted_key(queue_id): None})


def _is_within(wait_ms: int, then_ms: int, now_ms: int) -> bool:
    """True if the wait since then is not over. Another host's clock may have been ahead."""
    return -min(wait_ms, _CLOCKS_MS) <= now_ms - then_ms < wait_ms


def _arn(name: QueueName) -> str:
    account, region, queue = name
    return f"arn:aws:sqs:{region}:{account}:{queue}"


def _check_policy(given: Mapping[str, str]) -> None:
    """Refuse a bad policy that is given. Policies that are stored stay as they are."""
    if given.get("Policy"):
        check_policy_of_queue(given["Policy"])
