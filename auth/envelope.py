"""Envelope encryption with AES-256-GCM: data keys seal messages, wrapping keys seal keys. Pure.

A sealed message is `count, ciphertext, tag` (8 + n + 16 bytes). The nonce is the count: a data key
seals in the one process that made it and counts what it seals, so no nonce is ever repeated. The
associated data names neither queue nor message, since moves change both. The number of the key is
stored beside the message (`StoredMessage.sealed`).

A wrapped key is `nonce, ciphertext, tag`, with a random nonce and the key's purpose as associated
data.
"""

from __future__ import annotations

from typing import cast

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from typing_extensions import override

from auth.native import native

BUILT_IN_KEY = "aws/sqs"
"""Name of the key for queues that name no key (SSE-SQS), and for AWS's `alias/aws/sqs`."""
KEY_BYTES = 32
NONCE_BYTES = 12
_COUNT_BYTES = 8
_NONCE_REST = bytes(NONCE_BYTES - _COUNT_BYTES)
_TAG_BYTES = 16
_MESSAGE = b"holdfast message 1"


class SealBroken(Exception):
    """The bytes to open were not sealed under this key, or have changed since."""


class DataKey:
    """Seals and opens messages. Seals only in the process that made its secret."""

    __slots__ = ("_cipher", "count", "number")

    def __init__(self, number: int, secret: bytes) -> None:
        """`number` names the key beside each message, from 1; `secret` is 32 bytes long."""
        self.number = number
        self._cipher = AESGCM(secret)
        self.count = 0
        """Number of messages sealed so far."""

    def seal(self, data: bytes) -> bytes:
        """The sealed message, 24 bytes longer."""
        self.count += 1
        count = self.count.to_bytes(_COUNT_BYTES, "big")
        return count + self._cipher.encrypt(count + _NONCE_REST, data, _MESSAGE)

    def open(self, sealed: bytes) -> bytes:
        """The original message. Raises SealBroken."""
        if len(sealed) < _COUNT_BYTES + _TAG_BYTES:
            raise SealBroken("too short")
        nonce = sealed[:_COUNT_BYTES] + _NONCE_REST
        try:
            return self._cipher.decrypt(nonce, sealed[_COUNT_BYTES:], _MESSAGE)
        except InvalidTag as error:
            raise SealBroken("sealed under another key, or changed") from error


if native is not None:

    class _NativeDataKey(native.DataKey):  # type: ignore[misc]
        """A DataKey of the native module. Each secret has one object that seals, so one count."""

        @override
        def open(self, sealed: bytes) -> bytes:
            opened: bytes | None = self.opened(sealed)
            if opened is None:
                raise SealBroken("sealed under another key, or changed")
            return opened


def data_key(number: int, secret: bytes) -> DataKey:
    """A data key, native if the module is there."""
    if native is None:
        return DataKey(number, secret)
    return cast(DataKey, _NativeDataKey(number, secret))


class WrappingKey:
    """Seals keys and other small secrets, which are stored beside the data that they protect."""

    __slots__ = ("_cipher",)

    def __init__(self, secret: bytes) -> None:
        """`secret` is 32 bytes long."""
        self._cipher = AESGCM(secret)

    def wrap(self, secret: bytes, purpose: str, nonce: bytes) -> bytes:
        """The wrapped secret, 28 bytes longer; `nonce` is 12 random bytes, `purpose` is needed
        again to unwrap it."""
        return nonce + self._cipher.encrypt(nonce, secret, purpose.encode())

    def unwrap(self, wrapped: bytes, purpose: str) -> bytes:
        """The secret. Raises SealBroken."""
        if len(wrapped) < NONCE_BYTES + _TAG_BYTES:
            raise SealBroken("too short")
        nonce, rest = wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:]
        try:
            return self._cipher.decrypt(nonce, rest, purpose.encode())
        except InvalidTag as error:
            raise SealBroken("wrapped under another key, or changed") from error


def derived_key(secret: bytes, number: int) -> bytes:
    """The key with this number among those that 32 random bytes stand for."""
    return HKDFExpand(SHA256(), KEY_BYTES, b"holdfast data key %d" % number).derive(secret)
