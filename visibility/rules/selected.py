"""Messages that an operator selected by their sequences."""

from __future__ import annotations

from collections.abc import Collection

from visibility.contract.errors import InvalidParameterValue
from visibility.contract.limits import MOVE_SELECTED_MAX
from visibility.state.state import QueueState


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
