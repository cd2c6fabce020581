"""The file in a data folder that says which host, and of which cluster, it is."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from cluster.catalog.host_records import has_records
from cluster.clock import Entropy
from cluster.members.copied_records import RECORDS_FILE
from cluster.members.member_records import Identity, MembershipRefused

MEMBER_FILE = "member.json"
LEASE_FILE = "lease"
"""The id of the lease of the process that had the folder last; it may be lost."""
_ID_BYTES = 16


def open_identity(folder: Path, entropy: Entropy) -> Identity:
    """The identity of this folder, a new one if it has none; blocks. Raises OSError,
    MembershipRefused."""
    file = folder / MEMBER_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=Identity)
    except FileNotFoundError:
        if has_records(folder):
            raise MembershipRefused(
                f"{folder} is of a single host: a cluster begins with empty folders, or with those "
                "restored from a cluster's backup"
            ) from None
        identity = Identity(entropy.secret(_ID_BYTES).hex())
        save_identity(folder, identity)
        return identity
    except msgspec.MsgspecError as error:
        raise MembershipRefused(
            f"{file} cannot be read; without it the host registers anew"
        ) from error


def refuse_member_folder(folder: Path) -> None:
    """Raise MembershipRefused if this is the folder of a host of a cluster: alone, it would begin
    with queues and keys of its own."""
    if (folder / RECORDS_FILE).exists():
        raise MembershipRefused(
            f"{folder} is restored from a cluster's backup: found a cluster with it (etcd, "
            "cluster_hosts and the other settings of a host), or restore the backup for a single "
            "host with holdfast restore --single"
        )
    if (folder / MEMBER_FILE).exists():
        raise MembershipRefused(
            f"{folder} belongs to a host of a cluster: give the host's --config, or all its "
            "settings in the environment"
        )


def is_without_records(folder: Path) -> bool:
    """True for the folder of a host of a cluster, whose records are in etcd."""
    return (folder / MEMBER_FILE).exists() and not (folder / RECORDS_FILE).exists()


def save_identity(folder: Path, identity: Identity) -> None:
    """Write it durably; blocks. Raises OSError."""
    file = folder / MEMBER_FILE
    draft = file.with_suffix(".new")
    with draft.open("wb") as opened:
        opened.write(msgspec.json.format(msgspec.json.encode(identity)) + b"\n")
        opened.flush()
        os.fsync(opened.fileno())
    draft.replace(file)
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save_lease(folder: Path, lease_id: int) -> None:
    """Keep the id of this process's lease, if the disk takes it."""
    with suppress(OSError):
        (folder / LEASE_FILE).write_text(str(lease_id))


def former_lease(folder: Path) -> int:
    """The id of the lease of the folder's former process; 0 if it is not known."""
    try:
        return int((folder / LEASE_FILE).read_text())
    except (OSError, ValueError):
        return 0
