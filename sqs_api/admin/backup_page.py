"""The answer that makes a backup.

The service writes the target itself. The answer follows when the backup is on disk, after minutes
for many GiB.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

import msgspec

from sqs_api.admin.asked import Asked
from sqs_api.admin.backups import Backups
from sqs_api.admin.routes import BACKUP, Refused, Route
from storage.copies.manifest import BackupRefused, Manifest


class WantedBackup(msgspec.Struct, forbid_unknown_fields=True):
    """A backup into a new folder."""

    target: str
    with_master_key: bool = False


class MadeBackup(TypedDict):
    """Contents of the backup."""

    queues: int
    deleted_queues: int
    files: int
    bytes: int


async def make_backup(backups: Backups, asked: Asked, wanted: WantedBackup) -> MadeBackup:
    """Back up everything into a new folder of the host; the answer follows when it is on disk."""
    if not wanted.target or "\0" in wanted.target:
        raise Refused(400, "target: must be a folder")
    if wanted.with_master_key and asked.caller.user is not None:
        raise Refused(403, "with_master_key: this is for the root of the account only.")
    try:
        made = await backups.make(Path(wanted.target), with_master_key=wanted.with_master_key)
    except BackupRefused as refusal:
        raise Refused(409, str(refusal)) from refusal
    return _shown(made)


def _shown(made: Manifest) -> MadeBackup:
    return {
        "queues": made.queues,
        "deleted_queues": made.deleted_queues,
        "files": len(made.files),
        "bytes": made.size,
    }


ROUTES = (Route("POST", "backups", BACKUP, make_backup, "backup"),)
