"""PAGES: what can be asked of the service beside SQS, and the action that a policy must allow for it.

A new page is a row here and a function in `node.py` that answers it. Every row is signed, audited unless it only reads, and
closed to web pages: see `admin_access.py` and `admin.py`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

RESERVED = "/_holdfast/"
BACKUP = "holdfast:Backup"
READ_ARCHIVE = "holdfast:ReadArchive"
SEAL_ARCHIVE = "holdfast:SealArchive"
ACKNOWLEDGE_ARCHIVE = "holdfast:AcknowledgeArchive"
LIST_DELETED_QUEUES = "holdfast:ListDeletedQueues"
RESTORE_QUEUE = "holdfast:RestoreQueue"


class AdminPage(NamedTuple):
    """A page. `path` is a regular expression below RESERVED; what its groups match is handed to who answers."""

    action: str
    method: str
    path: str

    @property
    def only_reads(self) -> bool:
        """Whether it changes nothing."""
        return self.method == "GET"


PAGES = (
    AdminPage(BACKUP, "POST", "backups"),
    AdminPage(READ_ARCHIVE, "GET", "archive"),
    AdminPage(SEAL_ARCHIVE, "POST", "archive/seal"),
    AdminPage(ACKNOWLEDGE_ARCHIVE, "POST", "archive/archived"),
    AdminPage(LIST_DELETED_QUEUES, "GET", "deleted-queues"),
    AdminPage(RESTORE_QUEUE, "POST", "deleted-queues/([0-9]{1,18})/restore"),
)
ADMIN_ACTIONS = frozenset(page.action for page in PAGES)


def pages_at(path: str) -> dict[str, tuple[AdminPage, tuple[str, ...]]]:
    """The pages of a path by method, with what the path's groups match."""
    return {
        page.method: (page, found.groups())
        for page in PAGES
        if (found := re.fullmatch(RESERVED + page.path, path)) is not None
    }
