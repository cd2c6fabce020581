"""COMMAND_PAGES: the administrative pages in the OpenAPI document, for the commands and jobs that
ask them.

Bodies are read by `taken`, and the functions that answer are checked against `given`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from cluster.members.status import ClusterStatus
from sqs_api.admin.admin_actions import (
    ACKNOWLEDGE_ARCHIVE,
    BACKUP,
    DELETE_QUEUE,
    DRAIN_HOST,
    LIST_DELETED_QUEUES,
    PURGE_QUEUE,
    RAISE_FORMATS,
    READ_ARCHIVE,
    READ_CLUSTER,
    READ_USAGE,
    REMOVE_HOST,
    RESERVED,
    RESTORE_QUEUE,
    SEAL_ARCHIVE,
    AdminPage,
    page_of,
)
from sqs_api.admin.backup_page import MadeBackup, WantedBackup
from sqs_api.admin.cluster_pages import DrainedHost, Nothing, RemovedHost, WrittenFormats
from sqs_api.admin.queue_pages import NamedQueue, RestorableQueue, ShownQueueId
from sqs_api.admin.usage_page import ShownUsage, UsageParameters
from sqs_api.archiving.archive_pages import (
    ArchivedBatches,
    ArchiveStatus,
    RemovedMessages,
    SealedShards,
)

QUEUE_ID = "{queue_id}", r"[0-9]{1,18}"
"""The part of a path, and its pattern."""


class CommandPage(NamedTuple):
    """A page. `taken` is the type of its body, or of a GET's parameters; `given` that of its
    answer."""

    action: str
    summary: str
    given: Any
    taken: type[msgspec.Struct] | None = None

    @property
    def page(self) -> AdminPage:
        """The page as it is served."""
        return page_of(self.action)

    @property
    def path(self) -> str:
        """The whole path, with names for its parts."""
        name, pattern = QUEUE_ID
        return RESERVED + self.page.path.replace(f"({pattern})", name)


COMMAND_PAGES = (
    CommandPage(
        BACKUP,
        "Back up everything into a new folder of the host; the answer follows when it is on disk.",
        MadeBackup,
        WantedBackup,
    ),
    CommandPage(READ_ARCHIVE, "Tell what waits for the archive, by shard.", ArchiveStatus),
    CommandPage(SEAL_ARCHIVE, "Bring all that waits for the archive to the lake.", SealedShards),
    CommandPage(
        ACKNOWLEDGE_ARCHIVE,
        "Remove the messages of batches that a version of the archive's table has.",
        RemovedMessages,
        ArchivedBatches,
    ),
    CommandPage(
        LIST_DELETED_QUEUES,
        "List deleted and purged queues that can be restored, the latest first.",
        list[RestorableQueue],
    ),
    CommandPage(
        RESTORE_QUEUE,
        "Restore a deleted queue, or the messages of a purged one; answers with their queue.",
        ShownQueueId,
    ),
    CommandPage(DELETE_QUEUE, "Delete a queue, also a protected one.", ShownQueueId, NamedQueue),
    CommandPage(PURGE_QUEUE, "Purge a queue, also a protected one.", ShownQueueId, NamedQueue),
    CommandPage(
        READ_USAGE, "Show requests by day, account and queue.", ShownUsage, UsageParameters
    ),
    CommandPage(READ_CLUSTER, "Show hosts, shards, copies and problems.", ClusterStatus),
    CommandPage(DRAIN_HOST, "Let a host lead nothing, or lead again.", Nothing, DrainedHost),
    CommandPage(REMOVE_HOST, "Count a host's copies no more.", Nothing, RemovedHost),
    CommandPage(
        RAISE_FORMATS, "Have hosts write the newest formats that all can read.", WrittenFormats
    ),
)
