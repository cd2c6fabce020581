"""Digests that stand for group and deduplication ids, so that the engine and the disk never see the ids themselves.

16 bytes of BLAKE2b under the folder's digest key, so that whoever reads the disk cannot try ids, with a personalization for
each purpose. Bodies are hashed with SHA-256 by the caller first, as AWS says (content-based deduplication).
"""

from __future__ import annotations

from hashlib import blake2b

DIGEST_BYTES = 16
UNGROUPED = bytes(DIGEST_BYTES)
"""Stands for all messages of a standard queue that have no group."""


def group_digest(group_id: str, key: bytes = b"") -> bytes:
    """The digest of a MessageGroupId. One key for a whole folder, since messages move between queues with their groups."""
    return blake2b(group_id.encode(), digest_size=DIGEST_BYTES, key=key, person=b"group").digest()


def deduplication_digest(group_id: str | None, deduplication_id: str, key: bytes = b"") -> bytes:
    """The digest of a MessageDeduplicationId within a group, or within the whole queue where `group_id` is None."""
    scope = b"" if group_id is None else group_id.encode()
    text = b"%d:%b%b" % (len(scope), scope, deduplication_id.encode())
    person = b"queue ids" if group_id is None else b"group ids"
    return blake2b(text, digest_size=DIGEST_BYTES, key=key, person=person).digest()


def attempt_digest(attempt_id: str) -> bytes:
    """The digest of a ReceiveRequestAttemptId."""
    return blake2b(attempt_id.encode(), digest_size=DIGEST_BYTES, person=b"attempt").digest()
