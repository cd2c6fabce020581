"""Quarantine: what happens to a message or group whose row is not what was written."""

from __future__ import annotations

from visibility.state import window
from visibility.state.rows import DamagedRecord
from visibility.state.state import ShardState


def quarantine(state: ShardState, error: DamagedRecord) -> None:
    """Leave the message where it is and pass it by from here on; so a group of a FIFO queue. Raises any other error."""
    place = state.rows.place_of(error)
    if place is None:
        raise error
    queue = state.queue(place.queue_id)
    if place.group:
        if not queue.fifo or place.group in queue.quarantined_groups:
            raise error
        queue.quarantined_groups.add(place.group)
        state.rows.pass_by(error)
        return
    if not place.is_delayed and (place.sequence in queue.entries or queue.fifo):
        if place.sequence in queue.quarantined:
            raise error
        queue.quarantined.add(place.sequence)
        state.rows.pass_by(error)
    elif not state.rows.pass_by(error):
        # Memory may have it still, and what was decided needs it from the disk.
        if not window.discard(state, queue, place.sequence):
            raise error
        queue.unreadable += 1
        queue.has_unreadable = True
