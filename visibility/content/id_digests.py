"""Digests of group and deduplication ids: the engine and the disk never see the ids themselves.

16 bytes of BLAKE2b under the folder's digest key, so that ids cannot be guessed from the disk, with
a personalization for each purpose. For content-based deduplication, the caller hashes the body with
SHA-256 first, as AWS does.
"""

from __future__ import annotations

from hashlib import blake2b

DIGEST_BYTES = 16
UNGROUPED = bytes(DIGEST_BYTES)
"""The group of all messages of a standard queue without a group."""


def group_digest(group_id: str, key: bytes = b"") -> bytes:
    """The digest of a MessageGroupId. One key serves a whole folder: messages move with their
    groups."""
    return blake2b(group_id.encode(), digest_size=DIGEST_BYTES, key=key, person=b"group").digest()


def deduplication_digest(group_id: str | None, deduplication_id: str, key: bytes = b"") -> bytes:
    """The digest of a MessageDeduplicationId within a group, or within the queue if `group_id` is
    None."""
    scope = b"" if group_id is None else group_id.encode()
    text = b"%d:%b%b" % (len(scope), scope, deduplication_id.encode())
    person = b"queue ids" if group_id is None else b"group ids"
    return blake2b(text, digest_size=DIGEST_BYTES, key=key, person=person).digest()


def attempt_digest(attempt_id: str) -> bytes:
    """The digest of a ReceiveRequestAttemptId."""
    return blake2b(attempt_id.encode(), digest_size=DIGEST_BYTES, person=b"attempt").digest()
