"""Sealing of a message for the queue that it moves to; `sqs_api/gateway/sealing.py` implements it with the keys.

The engine knows ciphertext only. A message that only changes its place in its queue is not sealed anew.
"""

from __future__ import annotations

from typing import Protocol

from visibility.contract.model import QueueDefinition
from visibility.state.events import StoredMessage


class SealingFailed(Exception):
    """The keys could not be read or made just now."""


class Sealing(Protocol):
    """Seals and opens messages that move between queues."""

    def check(self, queue: QueueDefinition) -> None:
        """Raise KmsNotFound or KmsDisabled if the queue's key cannot be used."""

    def sealed_for(self, message: StoredMessage, queue: QueueDefinition) -> StoredMessage:
        """The message as this queue stores it: the very same if it is sealed well enough already, or is damaged.

        A message is never unsealed, and one under a key of an account stays under it. Raises KmsNotFound, KmsDisabled,
        SealingFailed.
        """


class AsStored:
    """Sealing of a shard whose queues do not encrypt."""

    def check(self, queue: QueueDefinition) -> None:
        """Every queue can be used."""

    def sealed_for(self, message: StoredMessage, queue: QueueDefinition) -> StoredMessage:
        """The message as it is."""
        return message
