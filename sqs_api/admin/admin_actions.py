"""PAGES: the administrative pages, and the action that a policy must allow for each.

A new page needs a row here and an answer in `admission.py`. All pages require a signature and
refuse browsers (`admin_access.py`); those that change something are audited (`admin_pages.py`).
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
DELETE_QUEUE = "holdfast:DeleteQueue"
PURGE_QUEUE = "holdfast:PurgeQueue"
READ_USAGE = "holdfast:ReadUsage"
READ_CLUSTER = "holdfast:ReadCluster"
DRAIN_HOST = "holdfast:DrainHost"
REMOVE_HOST = "holdfast:RemoveHost"
RAISE_FORMATS = "holdfast:RaiseFormats"
READ_METRICS = "holdfast:ReadMetrics"
"""Of a queue: the metrics that its owner reads."""


class AdminPage(NamedTuple):
    """A page.

    `path` is a regular expression, relative to RESERVED; its groups are passed to the answer.
    """

    action: str
    method: str
    path: str
    root_only: bool = False
    """Refuse users, even if their policies allow the action."""

    @property
    def only_reads(self) -> bool:
        """True if the page changes nothing."""
        return self.method == "GET"


PAGES = (
    AdminPage(BACKUP, "POST", "backups"),
    AdminPage(READ_ARCHIVE, "GET", "archive"),
    AdminPage(SEAL_ARCHIVE, "POST", "archive/seal"),
    AdminPage(ACKNOWLEDGE_ARCHIVE, "POST", "archive/archived"),
    AdminPage(LIST_DELETED_QUEUES, "GET", "deleted-queues"),
    AdminPage(RESTORE_QUEUE, "POST", "deleted-queues/([0-9]{1,18})/restore"),
    AdminPage(DELETE_QUEUE, "POST", "queues/delete", root_only=True),
    AdminPage(PURGE_QUEUE, "POST", "queues/purge", root_only=True),
    AdminPage(READ_USAGE, "GET", "usage", root_only=True),
    AdminPage(READ_CLUSTER, "GET", "cluster"),
    AdminPage(DRAIN_HOST, "POST", "cluster/drain", root_only=True),
    AdminPage(REMOVE_HOST, "POST", "cluster/remove", root_only=True),
    AdminPage(RAISE_FORMATS, "POST", "cluster/formats", root_only=True),
)
ADMIN_ACTIONS = frozenset(page.action for page in PAGES)


def page_of(action: str) -> AdminPage:
    """The page of an action."""
    return next(page for page in PAGES if page.action == action)


def pages_at(path: str) -> dict[str, tuple[AdminPage, tuple[str, ...]]]:
    """The pages of a path by method, with the matched groups."""
    return {
        page.method: (page, found.groups())
        for page in PAGES
        if (found := re.fullmatch(RESERVED + page.path, path)) is not None
    }
