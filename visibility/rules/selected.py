"""Messages that an operator selected by their sequences."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from visibility.contract.errors import InvalidParameterValue
from visibility.contract.limits import MOVE_SELECTED_MAX
from visibility.contract.stored_message import StoredMessage
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState

_READ_MESSAGES = 10
"""Messages that are in memory at once: each may have a MiB."""


def selected(sequences: Collection[int]) -> list[int]:
    """The sequences in order, each once. Raises InvalidParameterValue if they are too many."""
    chosen = sorted(set(sequences))
    if len(chosen) > MOVE_SELECTED_MAX:
        raise InvalidParameterValue(
            f"A move task takes up to {MOVE_SELECTED_MAX} selected messages, not {len(chosen)}."
        )
    return chosen


def is_hidden(queue: QueueState, sequence: int) -> bool:
    """True for a message in flight."""
    entry = queue.entries.get(sequence)
    return entry is not None and entry.hidden


def waiting(
    shard: ShardState, queue: QueueState, chosen: list[int]
) -> Iterator[tuple[int, StoredMessage]]:
    """Those of the messages that are neither in flight nor delayed nor gone. Raises
    DamagedRecord."""
    for begin in range(0, len(chosen), _READ_MESSAGES):
        piece = [
            each for each in chosen[begin : begin + _READ_MESSAGES] if not is_hidden(queue, each)
        ]
        for sequence, message in shard.rows.unless_quarantined(queue, piece):
            if message.group not in queue.quarantined.groups:
                yield sequence, message
