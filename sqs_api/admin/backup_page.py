"""The page that makes a backup: POST /_holdfast/backups {"target": "/absolute/folder",
"with_master_key": false}.

The service writes the target itself. The answer follows when the backup is on disk, after minutes
for many GiB.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TypedDict

import msgspec
from aiohttp import web

from sqs_api.admin.admin_access import AdminRequest
from sqs_api.admin.admin_actions import BACKUP
from sqs_api.admin.admin_pages import Answer, error_page, json_page
from sqs_api.admin.backups import Backups
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


def backup_pages(backups: Backups) -> dict[str, Answer]:
    """The page by its action."""
    return {BACKUP: partial(_make_backup, backups)}


async def _make_backup(backups: Backups, sent: AdminRequest) -> web.Response:
    """The backup, or an object with an `error`: 400 for an invalid request, 403 for a user who
    wants the master key, 409 if the backup failed."""
    try:
        wanted = msgspec.json.decode(sent.body, type=WantedBackup)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return error_page(400, f"not a request for a backup: {error}")
    if not wanted.target or "\0" in wanted.target:
        return error_page(400, "target: must be a folder")
    if wanted.with_master_key and not sent.by_root:
        return error_page(403, "with_master_key: this is for the root of the account only.")
    try:
        made = await backups.make(Path(wanted.target), with_master_key=wanted.with_master_key)
    except BackupRefused as refusal:
        return error_page(409, str(refusal))
    return json_page(_shown(made))


def _shown(made: Manifest) -> MadeBackup:
    return {
        "queues": made.queues,
        "deleted_queues": made.deleted_queues,
        "files": len(made.files),
        "bytes": made.size,
    }
