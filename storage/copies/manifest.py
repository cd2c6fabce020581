"""The manifest of a backup: written last, so a backup without one was not finished.

    BACKUP/backup.json      this
    BACKUP/...              the rest as in a data folder (storage/files/folder.py), with each
                            SQLite database in one file
    BACKUP/records.json     of a cluster: queues, users and keys (cluster/members/copied_records.py)

There is no format.json, so no service starts on a backup and changes it. The text has exactly one
form and contains its own hash, so that no byte of it can change unnoticed.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import msgspec

from storage.files.copying import write_file
from storage.files.folder import BACKUP_FILE, sync_folder

MANIFEST_FILE = BACKUP_FILE
MANIFEST_FORMAT = 1
CLUSTER_FORMAT = 2
"""Format of a cluster's backup, which versions that do not know it refuse."""
FLEET_FORMAT = 3
"""The same of one cluster's part of a fleet's backup."""
_FORMATS = {MANIFEST_FORMAT, CLUSTER_FORMAT, FLEET_FORMAT}


class BackupRefused(Exception):
    """The backup cannot be made or used; the text gives the reason in one line."""


class CopiedFile(msgspec.Struct, frozen=True):
    """A file of the backup, by its path relative to it."""

    path: str
    size: int
    sha256: str


class PartOfFleet(NamedTuple):
    """Names a part of a fleet's backup."""

    fleet: str
    """The id of the whole backup, which each part has. Empty for a backup that is no part."""
    number: int
    """The cluster's number in the fleet."""


NO_FLEET = PartOfFleet("", 0)


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The contents of a backup.

    `data_format` is that of the data folder; `last_stamp_ms`: no row was written later; `queues`
    are usable, `deleted_queues` restorable (until 0.1 they were among `queues`); `has_master_key`:
    True if this backup alone suffices to decrypt; `cluster` is the name of the cluster that was
    copied, empty for a single host; `fleet` and `cluster_number` are those of `PartOfFleet`.
    """

    format: int
    holdfast: str
    data_format: int
    made_at_ms: int
    last_stamp_ms: int
    shards: dict[str, str]
    queues: int
    has_master_key: bool
    files: list[CopiedFile]
    deleted_queues: int = 0
    cluster: str = ""
    fleet: str = ""
    cluster_number: int = 0

    @property
    def backup_id(self) -> str:
        """The same for equal backups only."""
        return sha256(_text(self)).hexdigest()[:32]

    @property
    def size(self) -> int:
        """Total size of all files, in bytes."""
        return sum(file.size for file in self.files)


class _Signed(msgspec.Struct, frozen=True):
    backup: Manifest
    sha256: str


def write_manifest(backup: Path, manifest: Manifest) -> None:
    """Declare a backup finished, durably: all files it names must be on disk. Raises OSError."""
    draft = backup / f"{MANIFEST_FILE}.new"
    write_file(draft, _text(manifest))
    draft.rename(backup / MANIFEST_FILE)
    sync_folder(backup)


def fleet_parts(backup: Path) -> list[str]:
    """The names of the parts of a fleet's backup, none if it is something else. Raises OSError."""
    return sorted(file.parent.name for file in backup.glob(f"cluster-*/{MANIFEST_FILE}"))


def read_manifest(backup: Path) -> Manifest:
    """Read the manifest.

    Raises BackupRefused if there is none, or it is damaged or of an unknown version.
    """
    file = backup / MANIFEST_FILE
    try:
        text = file.read_bytes()
    except FileNotFoundError as error:
        if parts := fleet_parts(backup):
            raise BackupRefused(
                f"{backup} is of a fleet, with the parts {', '.join(parts)}: restore them with "
                "--fleet and --cluster-number"
            ) from error
        raise BackupRefused(
            f"{backup} has no {MANIFEST_FILE}: it is no backup, or one that was not finished"
        ) from error
    except OSError as error:
        raise BackupRefused(f"cannot read {file}: {error.strerror}") from error
    try:
        manifest = msgspec.json.decode(text, type=_Signed).backup
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BackupRefused(f"{file} is damaged or of another version: {error}") from error
    if manifest.format not in _FORMATS:
        raise BackupRefused(
            f"{file} has format {manifest.format}; this version of holdfast knows {MANIFEST_FORMAT}"
            f" to {FLEET_FORMAT}"
        )
    if text != _text(manifest):
        raise BackupRefused(f"{file} is damaged: it is not what was written")
    for copied in manifest.files:
        path = PurePosixPath(copied.path)
        if path.is_absolute() or ".." in path.parts:
            raise BackupRefused(f"{file} names a file outside of the backup: {copied.path}")
    return manifest


def _text(manifest: Manifest) -> bytes:
    digest = sha256(msgspec.json.encode(manifest)).hexdigest()
    return msgspec.json.format(msgspec.json.encode(_Signed(manifest, digest)), indent=1) + b"\n"
