"""The rule of writing back the parts of a queue, after etcd was restored from an older snapshot
(rule 52). Pure, as those in `part_rules.py`.

    from             to            condition                           by
    the parts of an  those that a  the record is as the view shows it  a new leader
    older snapshot   shard noted   and older than the note             of that shard

Attributes and tags stay those of the record. It gets the version in which the parts were noted: a
shard that noted still later ones writes those. So all shards together arrive at the latest list, in
whatever order they get leaders.

They are not written if another queue has the id of one of the parts meanwhile: it was made in
another cluster before the first of these shards got a leader. Its messages are served, those of the
later parts are not. The record skips their numbers, which receipt handles may name.
"""

from __future__ import annotations

import msgspec

from cluster.catalog.catalog_records import LAST_ID, Entries, name_of, queue_key
from cluster.catalog.queue_rules import Decision
from cluster.catalog.queue_view import QueueView
from visibility.contract.model import QueueDefinition
from visibility.rows.row_values import NotedParts
from visibility.rules.noted_parts import name_of_note, parts_of


def write_back(view: QueueView, name: bytes, noted: NotedParts) -> Decision:
    """The queue with the parts that a shard noted, or without their numbers if other queues have
    their ids; nothing if they are not later than those of its record, or if it has none."""
    queue = _older(view, name, noted)
    if queue is None:
        return Decision({})
    if _taken(view, name, noted):
        return _skipping(queue, noted.last_part)
    changed = msgspec.structs.replace(
        queue,
        queue_id=noted.queue_id,
        shard=noted.shard,
        version=max(noted.version, queue.version + 1),
        parts=noted.parts,
        last_part=noted.last_part,
        number=noted.number,
        gone=noted.gone,
    )
    entries: Entries = {queue_key(name_of(queue)): changed}
    highest = max(part.queue_id for part in changed.all_parts())
    if highest > view.highest_queue_id:
        entries[LAST_ID] = highest
    return Decision(entries, changed.queue_id)


def _skipping(queue: QueueDefinition, number: int) -> Decision:
    if queue.highest_part >= number:
        return Decision({})
    changed = msgspec.structs.replace(queue, version=queue.version + 1, skipped_part=number)
    return Decision({queue_key(name_of(queue)): changed}, queue.queue_id)


def taken_ids(view: QueueView, name: bytes, noted: NotedParts) -> list[int]:
    """The ids of later parts that other queues have, or deleted ones that can be restored; none if
    the parts are not later."""
    return [] if _older(view, name, noted) is None else _taken(view, name, noted)


def _older(view: QueueView, name: bytes, noted: NotedParts) -> QueueDefinition | None:
    """The queue of a note, if its parts are older than the noted ones."""
    queue = view.find((noted.account, noted.region, noted.name))
    if queue is None or name_of_note(queue) != name or not noted.is_later(parts_of(queue)):
        return None
    return queue


def _taken(view: QueueView, name: bytes, noted: NotedParts) -> list[int]:
    holders = {queue_id: _holder(view, queue_id) for queue_id in noted.queue_ids}
    return sorted(
        queue_id
        for queue_id, holder in holders.items()
        if holder is not None and name_of_note(holder) != name
    )


def _holder(view: QueueView, queue_id: int) -> QueueDefinition | None:
    kept = view.kept.get(queue_id)
    return view.queue_of_id(queue_id) or (None if kept is None else kept.queue)
