"""The time for which a receive waits for messages."""

from __future__ import annotations

from visibility.contract.model import QueueSettings
from visibility.contract.operations import ReceiveMessage

_LETTERS_MS = 1_000
"""Least time to wait for the receive's own dead letters, which go to another shard."""


def wait_ms(operation: ReceiveMessage, settings: QueueSettings) -> int:
    """Time for which this receive may wait: its own, or by default the queue's."""
    asked_s = operation.wait_time_seconds
    return settings.wait_ms if asked_s is None else asked_s * 1000


def parked_ms(operation: ReceiveMessage, settings: QueueSettings) -> int:
    """Time for which it is parked. Without a wait it only is for its dead letters."""
    return wait_ms(operation, settings) or _LETTERS_MS
