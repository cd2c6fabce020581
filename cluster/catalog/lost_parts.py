"""The rule of giving up parts whose shards are lost for good. Pure, as those in `part_rules.py`.

The queue answers again, with what it has elsewhere, or with an empty part. Of a standard queue the
other open parts are enough; a FIFO queue gets a new part for the message groups of each that is
lost. What the lost parts had, deduplication ids and move tasks among it, is lost with them. A lost
part is remembered as one that is gone, so handles that name it are answered as for a deleted
message.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

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
from visibility.contract.model import QueueDefinition
from visibility.contract.queue_parts import (
    GONE_MS,
    NUMBERS_SKIPPED,
    PART_STEP,
    GonePart,
    Part,
)


def give_up_parts(
    view: QueueView,
    queue: QueueDefinition,
    lost: Collection[int],
    shards: Sequence[int],
    now_ms: int,
) -> Decision:
    """A queue without its parts on the `lost` shards; new ones are placed on `shards` in turn.

    Numbers of new parts leave out those that a lost part may have reached: how far it came is not
    known. Nothing if the queue has no part there, or is gone.
    """
    current = view.find(name_of(queue))
    parts = () if current is None else _parts_of(current)
    gone = [part for part in parts if part.shard in lost]
    if current is None or not gone:
        return Decision({}, 0 if current is None else current.queue_id)
    left = [part for part in parts if part.shard not in lost]
    replaced = _to_replace(current, gone, left)
    first_id, last = view.highest_queue_id + 1, current.last_part
    if replaced:
        highest = max(current.highest_part, *(part.number for part in parts))
        last = (highest + NUMBERS_SKIPPED) // PART_STEP * PART_STEP
    new = [
        msgspec.structs.replace(
            part,
            number=last + (place + 1) * PART_STEP,
            queue_id=first_id + place,
            shard=shards[(first_id + place) % len(shards)],
        )
        for place, part in enumerate(replaced)
    ]
    last = new[-1].number if new else last
    home = next(part for part in (*left, *new) if part.is_open)
    heirs = dict.fromkeys((part.number for part in gone), home)
    heirs |= {old.number: part for old, part in zip(replaced, new, strict=True)}
    others = [_with_heir(part, heirs) for part in (*left, *new) if part.queue_id != home.queue_id]
    changed = _changed(current, [home, *others], gone, heirs, now_ms, last)
    entries: Entries = {
        deleted_key(part.queue_id): KeptQueue(
            current.of_part(part), now_ms, KeptState.DROPPING, heirs[part.number].queue_id
        )
        for part in gone
    }
    entries[queue_key(name_of(current))] = changed
    if new:
        entries[LAST_ID] = new[-1].queue_id
    return Decision(entries, changed.queue_id)


def _parts_of(queue: QueueDefinition) -> tuple[Part, ...]:
    return queue.parts or (Part(queue.number, queue.queue_id, queue.shard),)


def _to_replace(queue: QueueDefinition, gone: Sequence[Part], left: Sequence[Part]) -> list[Part]:
    """The lost parts in whose place others take messages."""
    closed = [part for part in gone if part.is_open]
    if queue.settings.fifo:
        return closed
    return [] if any(part.is_open for part in left) else closed[:1]


def _with_heir(part: Part, heirs: dict[int, Part]) -> Part:
    """A part that drains into one that is not lost."""
    heir = heirs.get(part.heir) if not part.is_open else None
    return part if heir is None else msgspec.structs.replace(part, heir=heir.number)


def _changed(
    current: QueueDefinition,
    parts: Sequence[Part],
    lost: Sequence[Part],
    heirs: dict[int, Part],
    now_ms: int,
    last_part: int,
) -> QueueDefinition:
    gone = [each for each in current.gone if now_ms - each.gone_at_ms < GONE_MS]
    gone += [GonePart(each.number, heirs[each.number].number, now_ms, each.shard) for each in lost]
    is_whole = len(parts) == 1
    return msgspec.structs.replace(
        current,
        queue_id=parts[0].queue_id,
        shard=parts[0].shard,
        version=current.version + 1,
        parts=() if is_whole else tuple(parts),
        number=parts[0].number if is_whole else current.number,
        last_part=last_part,
        gone=tuple(gone),
    )
