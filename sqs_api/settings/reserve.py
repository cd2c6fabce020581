"""The settings that go with the folders of shards: the durability of several, and the least disk
reserve, which the logs need to go on while sends are refused."""

from __future__ import annotations

from collections.abc import Collection

from sqs_api.settings.config import Settings
from storage.engines.store_options import FLUSH_BYTES, Durability
from storage.files.folder import FolderRefused
from storage.log import SEGMENT_BYTES

_SEGMENTS_MIN = 2


def check_reserve(settings: Settings, shards: int) -> None:
    """Refuse a reserve without a segment for each log: receives and deletes would stop as well, and
    nothing would ever be free again. Raises FolderRefused."""
    least = max(_SEGMENTS_MIN, shards) * SEGMENT_BYTES >> 20
    if settings.disk_reserve_mib < least:
        raise FolderRefused(
            f"disk_reserve_mib: must be at least {least} with shards = {shards}: the log needs "
            "that to go on while sends are refused"
        )


def check_folders(settings: Settings, folders: Collection[object]) -> None:
    """Refuse shards' folders that do not go with the settings. Raises FolderRefused."""
    if len(folders) > 1 and settings.durability is not Durability.FSYNC:
        # A shard that came back without its last Entries would give numbers again that another
        # one remembers: it would take the messages for old ones.
        raise FolderRefused(
            f"{settings.data} has {len(folders)} shards, and with durability "
            f"{settings.durability} a power loss may cost messages between them: start with "
            "--durability fsync"
        )
    check_reserve(settings, len(folders))


def flush_bytes(settings: Settings) -> int:
    """The size of the log at which rows are flushed, which takes as much space: half of the
    reserve, so that there is room for it."""
    return min(FLUSH_BYTES, (settings.disk_reserve_mib << 20) // 2)
