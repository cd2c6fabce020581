"""Room: what a queue, or a part of one, may still take by the limits of its tags."""

from __future__ import annotations

from visibility.contract.length_tags import OVERFLOW_TAG, TO_DEAD_LETTERS, limits_of
from visibility.contract.model import Joining, QueueDefinition
from visibility.state.queue_state import QueueState

Spare = tuple[int, int]
"""Messages and bytes."""
_SPARE_PART = 10
_SPARE_MIN, _SPARE_MAX = 10, 500
"""Messages, of which a batch has ten."""
_SPARE_BYTES_MAX = 8 << 20


class Room:
    """The room in one decision, which takes of it."""

    __slots__ = ("_bytes", "_messages", "most_bytes")

    def __init__(self, messages: int, size: int, most_bytes: int) -> None:
        self._messages = messages
        self._bytes = size
        self.most_bytes = most_bytes
        """The limit itself: a larger message never fits."""

    @classmethod
    def of(cls, queue: QueueState, definition: QueueDefinition) -> Room | None:
        """The room of a queue now, None if nothing limits it."""
        left = _left(queue, definition)
        return None if left is None else cls(*left)

    def has(self, size: int, *, freed: int = 0, freed_bytes: int = 0) -> bool:
        """True if a message of this size fits, once that much is freed."""
        return self._messages + freed > 0 and self.has_bytes(size - freed_bytes)

    def has_bytes(self, size: int) -> bool:
        """True if this many bytes fit, of however many messages."""
        return self._bytes >= size

    @property
    def is_exceeded(self) -> bool:
        """True if the queue is above a limit."""
        return self._messages < 0 or self._bytes < 0

    def take(self, size: int) -> None:
        """Count a message that joins the queue."""
        self._messages -= 1
        self._bytes -= size

    def give_back(self, size: int) -> None:
        """Count a message that leaves it."""
        self._messages += 1
        self._bytes += size


def takes(room: Room | None, size: int) -> bool:
    """Take room for a message; False if there is none."""
    if room is None:
        return True
    if not room.has(size):
        return False
    room.take(size)
    return True


def just_joins(queue: QueueState, definition: QueueDefinition, joining: Joining, size: int) -> bool:
    """True if a message of this size fits into the queue now, and has to move no other."""
    parts = len(definition.parts) or 1
    return (
        queue.stored + queue.departed < joining.messages // parts
        and queue.size + queue.departed_size + size <= joining.size // parts
    )


def spare_room(definition: QueueDefinition) -> Spare:
    """The room that a queue keeps, if others make room for sends that need time for that."""
    own_tags = definition.settings.own_tags
    if own_tags.get(OVERFLOW_TAG) != TO_DEAD_LETTERS:
        return 0, 0
    limits = limits_of(own_tags, len(definition.parts))
    if limits is None:
        return 0, 0
    messages, size = limits
    part = min(max(messages // _SPARE_PART, _SPARE_MIN), messages // 2, _SPARE_MAX)
    return part, min(size // _SPARE_PART, _SPARE_BYTES_MAX)


def _left(queue: QueueState, definition: QueueDefinition) -> tuple[int, int, int] | None:
    """(messages, bytes) that still fit, and the limit of bytes; None if nothing limits them."""
    own_tags = definition.settings.own_tags
    limits = limits_of(own_tags, len(definition.parts)) if own_tags else None
    if limits is None:
        return None
    messages, size = limits
    held = queue.stored + queue.departed
    return messages - held, size - queue.size - queue.departed_size, size
