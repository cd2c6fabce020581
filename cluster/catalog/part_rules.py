"""The rules of a queue's parts: add some, drain some, remove one that is empty. Pure functions of
the view and the request, like those in `queue_rules.py`.

    from      to        condition                              by            if it stops there
    no parts  OPEN      a standard queue; next sequences are   an operator   nothing changed
                        known; PARTS_MAX at most
    OPEN      DRAINING  not the home; an open part is its heir  an operator   nothing changed
    OPEN      DRAINING  any; a new part is OPEN in the same     an operator   nothing changed
                        transaction, its heir, with its groups
                        if FIFO, and the home if it was; no
                        purged messages then; if FIFO, no
                        earlier part gives it messages
    OPEN      DRAINING  all parts of a FIFO queue at once; new  an operator   nothing changed
                        parts are OPEN in the same
                        transaction; none is given messages
    DRAINING  removed   its shard recorded that it is empty     the leader    asked again each
                                                               of its shard  second

Each is one transaction on the record of the queue, on condition that it is as the view shows it,
and raises the queue's version. A closed part is never opened again. A removed part becomes a
tombstone whose rows are dropped; its number stays in the record for as long as a handle may name
it.

A home that moves gives its role to the new part, whose id is the queue's from then on. Requests of
hosts that have not heard of it name a part that is closed, and go on from there.

The parts of a FIFO queue share out its message groups, each has a range of hashes. New parts have
higher numbers than those before them, so a group's sequences rise from part to part. The first of
them is the home, whose id is the queue's from then on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import cycle
from typing import NamedTuple

import msgspec

from cluster.catalog.catalog_records import (
    LAST_ID,
    Entries,
    KeptQueue,
    KeptState,
    deleted_key,
    name_of,
    queue_key,
)
from cluster.catalog.queue_rules import Decision
from cluster.catalog.queue_view import QueueView
from visibility.contract.errors import (
    InvalidParameterValue,
    QueueDoesNotExist,
    ServiceUnavailable,
    UnsupportedOperation,
)
from visibility.contract.length_tags import parts_without_room
from visibility.contract.levelling_tags import keeps_whole
from visibility.contract.model import QueueDefinition
from visibility.contract.queue_parts import (
    GONE_MS,
    HASH_BITS,
    PARTS_MAX,
    GonePart,
    Part,
    PartState,
    first_sequence,
    next_number,
)

_GONE_MAX = 500
"""Parts that are remembered for that, so that a record stays small."""


class NewParts(NamedTuple):
    """Parts to add, one on each of `shards`, in order.

    `next_sequences` are those of the queue's present parts by queue id: numbers that were issued
    are not issued again. `with_messages` are the ids of the parts that still have some.
    """

    shards: Sequence[int]
    next_sequences: Mapping[int, int]
    with_messages: Collection[int] = ()


def shards_for(queue: QueueDefinition, shards: Sequence[int], count: int) -> list[int]:
    """The shards for `count` more parts: those with the fewest parts of the queue, in order after
    its home."""
    held = dict.fromkeys(shards, 0)
    for each in queue.all_parts():
        held[each.shard] = held.get(each.shard, 0) + 1
    begin = shards.index(queue.shard) if queue.shard in shards else 0
    in_turn = [*shards[begin:], *shards[:begin]]
    chosen: list[int] = []
    for _ in range(count):
        shard = min(in_turn, key=held.__getitem__)
        held[shard] += 1
        chosen.append(shard)
    return chosen


def add_parts(view: QueueView, queue: QueueDefinition, added: NewParts) -> Decision:
    """More parts, which take messages from now on.

    Raises QueueDoesNotExist, UnsupportedOperation for a FIFO queue and one whose tags keep it
    whole, InvalidParameterValue for too many parts, ServiceUnavailable if there are other parts
    now than those asked.
    """
    current = _current(view, queue)
    _check_standard(current)
    parts, last = _with_new(view, current, added)
    _check_room(current, len(parts))
    entries = _with_parts(current, parts, last)
    entries[LAST_ID] = view.highest_queue_id + len(added.shards)
    return Decision(entries, current.queue_id)


def replace_parts(
    view: QueueView, queue: QueueDefinition, added: NewParts, now_ms: int
) -> Decision:
    """New parts of a FIFO queue, which take its messages from now on in place of all others.

    Raises QueueDoesNotExist, UnsupportedOperation for a queue that deduplicates over all its
    groups, for one whose tags keep it whole, for one into which purged messages can be restored,
    and while closed parts give messages to those that would close, InvalidParameterValue for too
    many parts, ServiceUnavailable if there are other parts now than those asked.
    """
    current = _current(view, queue)
    if current.deduplication_scope != "messageGroup":
        raise UnsupportedOperation(
            f"FIFO queue {current.name} deduplicates over the whole queue, so it stays whole. Only "
            "one that was created with DeduplicationScope messageGroup can have several parts."
        )
    own = {part.queue_id for part in current.parts} or {current.queue_id}
    if any(each.continued_as in own and _is_restorable(each) for each in view.kept):
        raise UnsupportedOperation(
            f"Purged messages of queue {current.name} can be restored: its parts stay as they are "
            "until they are, or until the time for that is over."
        )
    before, last = _with_new(view, current, added)
    count = len(added.shards)
    _check_room(current, count)
    new = [
        msgspec.structs.replace(
            part,
            first_hash=(place << HASH_BITS) // count,
            last_hash=((place + 1) << HASH_BITS) // count - 1,
        )
        for place, part in enumerate(before[-count:])
    ]
    _check_emptied(current, [part for part in before[:-count] if part.is_open], added)
    closing = [
        _closing(part, part.heir, now_ms) if part.is_open else part for part in before[:-count]
    ]
    home = msgspec.structs.replace(current, queue_id=new[0].queue_id, shard=new[0].shard)
    entries = _with_parts(home, [*new, *closing], last)
    entries[LAST_ID] = view.highest_queue_id + count
    return Decision(entries, home.queue_id)


def _check_room(current: QueueDefinition, parts: int) -> None:
    settings = current.settings
    if reason := parts_without_room(settings.own_tags, parts, settings.maximum_message_size):
        raise UnsupportedOperation(f"Queue {current.name} would have too many parts: {reason}.")


def _check_standard(current: QueueDefinition) -> None:
    if current.settings.fifo:
        raise UnsupportedOperation(f"The parts of FIFO queue {current.name} can only be replaced.")


def _check_emptied(current: QueueDefinition, closing: Sequence[Part], added: NewParts) -> None:
    """Raises UnsupportedOperation while a closed part of a FIFO queue still has messages that one
    of these gets. A part gives each group to the next one with it, which must be open."""
    for part in closing:
        for earlier in current.parts:
            if earlier.queue_id in added.with_messages and earlier.comes_before(part):
                raise UnsupportedOperation(
                    f"Part {part.number} of FIFO queue {current.name} is still given the messages "
                    f"of part {earlier.number}: it can be replaced when that is empty."
                )


def _is_restorable(kept: KeptQueue) -> bool:
    """False for what was purged while there were several parts, see `queue_rules.restore`."""
    return kept.is_needed and not kept.queue.parts


def _with_new(view: QueueView, current: QueueDefinition, added: NewParts) -> tuple[list[Part], int]:
    """The parts, the new ones last, and the highest number."""
    if reason := keeps_whole(current.settings.own_tags):
        raise UnsupportedOperation(f"Queue {current.name} stays whole: {reason}.")
    parts = list(current.parts) or [Part(current.number, current.queue_id, current.shard)]
    if len(parts) + len(added.shards) > PARTS_MAX:
        raise InvalidParameterValue(
            f"Queue {current.name} would have more than {PARTS_MAX} parts, those that drain "
            "included."
        )
    if closed := {*added.shards} & {*view.draining_shards(), *view.removed_at_ms}:
        raise UnsupportedOperation(
            f"Shard {min(closed)} is of a cluster that is being emptied, or was removed."
        )
    if not {part.queue_id for part in parts} <= added.next_sequences.keys():
        raise ServiceUnavailable(f"The parts of queue {current.name} have just changed.")
    queue_id, last = view.highest_queue_id, current.highest_part
    for sequence in added.next_sequences.values():
        last = max(last, next_number(0, sequence) - next_number(0, 0))
    for shard in added.shards:
        queue_id, last = queue_id + 1, next_number(last, 0)
        parts.append(Part(last, queue_id, shard))
    if first_sequence(last + next_number(0, 0)) >= 1 << 63:
        raise InvalidParameterValue(f"Queue {current.name} has no more numbers for parts.")
    return parts, last


def drain_parts(
    view: QueueView, queue: QueueDefinition, numbers: Sequence[int], now_ms: int
) -> Decision:
    """Parts that take no messages any more; the open ones get theirs, in turn. Those that drain
    already stay as they are.

    Raises QueueDoesNotExist, InvalidParameterValue for the home and for an unknown part.
    """
    current = _current(view, queue)
    _check_standard(current)
    by_number = {part.number: part for part in current.parts[1:]}
    unknown = set(numbers) - by_number.keys()
    if unknown:
        raise InvalidParameterValue(
            f"Queue {current.name} has no part {min(unknown)} that could be drained."
        )
    closing = [number for number in numbers if by_number[number].is_open]
    if not closing:
        return Decision({}, current.queue_id)
    _check_gone(current)
    heirs = cycle(
        part.number for part in current.parts if part.is_open and part.number not in closing
    )
    parts = [
        _closing(part, next(heirs), now_ms) if part.number in closing else part
        for part in current.parts
    ]
    return Decision(_with_parts(current, parts, current.last_part), current.queue_id)


def move_part(
    view: QueueView, queue: QueueDefinition, number: int, added: NewParts, now_ms: int
) -> Decision:
    """One new part in place of an open one, which drains into it. If that was the home, the new
    part is it, and has the queue's id. In a FIFO queue it gets the groups of the old one.

    Raises QueueDoesNotExist, InvalidParameterValue for a part that is unknown or drains,
    UnsupportedOperation for a home, and for any part of a FIFO queue, into which purged messages
    can be restored, and while a closed part gives it messages, ServiceUnavailable if there are
    other parts now than those asked.
    """
    current = _current(view, queue)
    parts, last = _with_new(view, current, added)
    *before, new = parts
    old = next((part for part in before if part.number == number and part.is_open), None)
    if old is None:
        raise InvalidParameterValue(
            f"Queue {current.name} has no part {number} that could be moved."
        )
    _check_gone(current)
    if old.queue_id == current.queue_id or current.settings.fifo:
        if any(kept.continued_as == old.queue_id and kept.is_needed for kept in view.kept):
            raise UnsupportedOperation(
                f"Purged messages of queue {current.name} can be restored: it cannot move until "
                "they are, or until the time for that is over."
            )
    if current.settings.fifo:
        _check_emptied(current, [old], added)
    drains = _closing(old, new.number, now_ms)
    new = msgspec.structs.replace(new, first_hash=old.first_hash, last_hash=old.last_hash)
    if old.queue_id == current.queue_id:
        parts = [new, drains, *before[1:]]
        current = msgspec.structs.replace(current, queue_id=new.queue_id, shard=new.shard)
    else:
        parts = [*(drains if part is old else part for part in before), new]
    entries = _with_parts(current, parts, last)
    entries[LAST_ID] = new.queue_id
    return Decision(entries, current.queue_id)


def _closing(part: Part, heir: int, now_ms: int) -> Part:
    return msgspec.structs.replace(
        part, state=PartState.DRAINING, heir=heir, drains_since_ms=now_ms
    )


def _check_gone(current: QueueDefinition) -> None:
    """Raises UnsupportedOperation for a queue whose record would be too large."""
    if len(current.gone) + len(current.parts) >= _GONE_MAX:
        raise UnsupportedOperation(
            f"Queue {current.name} had more than {_GONE_MAX} parts in the last two weeks. Receipt "
            "handles may name them, so it has no more until some are older."
        )


def remove_part(view: QueueView, queue_id: int, version: int, now_ms: int) -> Decision:
    """Without a part that drains and is empty; nothing if the queue has changed since `version`,
    or the part is gone already (rule 42)."""
    drained = view.queue_of_id(queue_id)
    if drained is None or drained.version != version or drained.is_home or drained.part.is_open:
        return Decision({})
    if any(kept.continued_as == queue_id and kept.is_needed for kept in view.kept):
        return Decision({})  # its purged messages can be restored
    current = _current(view, drained)
    left = [part for part in current.parts if part.queue_id != queue_id]
    gone = [each for each in current.gone if now_ms - each.gone_at_ms < GONE_MS]
    gone.append(GonePart(drained.part.number, drained.part.heir, now_ms, drained.shard))
    current = msgspec.structs.replace(current, gone=tuple(gone))
    if len(left) == 1:
        current = msgspec.structs.replace(current, number=left[0].number)
    entries = _with_parts(current, left if len(left) > 1 else [], current.last_part)
    entries[deleted_key(queue_id)] = KeptQueue(drained, now_ms, KeptState.DROPPING)
    return Decision(entries, current.queue_id)


def _with_parts(current: QueueDefinition, parts: Sequence[Part], last_part: int) -> Entries:
    changed = msgspec.structs.replace(
        current, version=current.version + 1, parts=tuple(parts), last_part=last_part
    )
    return {queue_key(name_of(changed)): changed}


def _current(view: QueueView, queue: QueueDefinition) -> QueueDefinition:
    """The whole queue as it is now. Raises QueueDoesNotExist."""
    current = view.find(name_of(queue))
    if current is None or view.successor(queue.queue_id) is None:
        raise QueueDoesNotExist()
    return current
