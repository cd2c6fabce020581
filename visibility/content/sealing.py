"""Sealing of sent and of moving messages; `sqs_api/gateway/sealer.py` has the keys.

The engine stores only ciphertext. A message that changes its place within its queue keeps its seal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from visibility.contract.model import QueueDefinition
from visibility.contract.stored_message import StoredMessage

KEY_AGAIN_MS = 100
"""Interval at which rules ask again for a key that is not there yet."""


class SealingKey(Protocol):
    """Seals messages."""

    number: int
    """Number of the key, stored beside each message, from 1."""

    def seal(self, data: bytes) -> bytes:
        """The sealed message."""


class SendSealing(Protocol):
    """Seals sent messages."""

    digest_key: bytes
    """Key of the hashes of group and deduplication ids."""

    def key_of(self, queue: QueueDefinition) -> SealingKey | None:
        """The key for new messages, None if they are stored unsealed.

        Raises KmsNotFound, KmsDisabled, ServiceUnavailable.
        """


class Sealing(Protocol):
    """Seals and opens messages that move between queues.

    ServiceUnavailable means that a key is not there yet, or cannot be read or made now: a retry may
    succeed. The other errors last.
    """

    def check(self, queue: QueueDefinition) -> None:
        """Raise KmsNotFound or KmsDisabled if the queue's key cannot be used, ServiceUnavailable if
        that cannot be said yet."""

    def sealed_for(self, message: StoredMessage, queue: QueueDefinition) -> StoredMessage:
        """The message as this queue stores it: the same object if its seal will do or it is
        damaged.

        A message is never unsealed, and one under an account's key stays under that key. Raises
        KmsNotFound, KmsDisabled, ServiceUnavailable.
        """

    def with_content(
        self, message: StoredMessage, data: bytes, queue: QueueDefinition
    ) -> StoredMessage:
        """The message with other content, sealed as this queue stores it.

        One under an account's key stays under that key. Raises KmsNotFound, KmsDisabled,
        ServiceUnavailable.
        """

    def opened(self, message: StoredMessage, queues: Sequence[QueueDefinition]) -> bytes | None:
        """The content of a message, to compare it with a filter; None if it is damaged.

        Raises KmsAccessDenied for a message under an account's key that is none of these queues',
        since only the right to use those was checked; and KmsDisabled, ServiceUnavailable.
        """

    def open_note(self, number: int, data: bytes) -> bytes | None:
        """The content that the service sealed under this data key, None if that cannot be opened
        for good. Raises ServiceUnavailable."""


class AsStored:
    """Sealing of a service whose queues do not encrypt."""

    digest_key = b""

    def key_of(self, queue: QueueDefinition) -> SealingKey | None:
        """None: messages are stored unsealed."""
        return None

    def check(self, queue: QueueDefinition) -> None:
        """Accept every queue."""

    def sealed_for(self, message: StoredMessage, queue: QueueDefinition) -> StoredMessage:
        """The same message."""
        return message

    def with_content(
        self, message: StoredMessage, data: bytes, queue: QueueDefinition
    ) -> StoredMessage:
        """The message with other content."""
        return msgspec.structs.replace(message, data=data)

    def opened(self, message: StoredMessage, queues: Sequence[QueueDefinition]) -> bytes | None:
        """The message's content."""
        return message.data

    def open_note(self, number: int, data: bytes) -> bytes | None:
        """The content."""
        return data
