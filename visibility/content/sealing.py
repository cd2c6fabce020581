"""Sealing of messages that are sent, and that move to another queue; `sqs_api/gateway/sealing.py` has the keys.

The engine knows ciphertext only. A message that only changes its place in its queue is not sealed anew.
"""

from __future__ import annotations

from typing import Protocol

from visibility.contract.model import QueueDefinition
from visibility.state.events import StoredMessage


class SealingFailed(Exception):
    """The keys could not be read or made just now."""


class SealingKey(Protocol):
    """Seals messages."""

    number: int
    """Names the key beside each message, from 1."""

    def seal(self, data: bytes) -> bytes:
        """The sealed message."""


class SendSealing(Protocol):
    """Seals messages that are sent."""

    digest_key: bytes
    """Group and deduplication ids are hashed with it."""

    def key_of(self, queue: QueueDefinition) -> SealingKey | None:
        """The key for new messages, None where they are stored as they are. Raises KmsNotFound, KmsDisabled."""


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
    """Sealing of a service whose queues do not encrypt."""

    digest_key = b""

    def key_of(self, queue: QueueDefinition) -> SealingKey | None:
        """None: messages are stored as they are."""
        return None

    def check(self, queue: QueueDefinition) -> None:
        """Every queue can be used."""

    def sealed_for(self, message: StoredMessage, queue: QueueDefinition) -> StoredMessage:
        """The message as it is."""
        return message
