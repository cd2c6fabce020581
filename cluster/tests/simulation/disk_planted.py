"""Bugs that the simulator of a cluster must find where disks are damaged, planted into the
production code for the time of a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.peers.checkpoint_fetch import CheckpointFetch
from cluster.peers.checkpoint_messages import Checked
from cluster.replication import Journal
from cluster.replication.replicated_store import ReplicatedStore
from cluster.tests.simulation.cluster_run import Shape
from cluster.tests.simulation.planting import Plant
from cluster.tests.simulation.simulated_disk_faults import DiskShape
from cluster.tests.simulation.simulated_rows import SimulatedRows
from storage.log import Position, Promise
from storage.log.disk import Disk
from visibility.rows.row_keys import APPLIED_KEY


def count_a_damaged_replica(patch: pytest.MonkeyPatch) -> None:
    """A replica that lost an Entry goes on under its id."""
    renewed = Journal._renewed

    def keep(self: Journal, promise: Promise | None, damage: str) -> Promise:
        return renewed(self, promise, damage if promise is None else "")

    patch.setattr(Journal, "_renewed", keep)


def no_learner_rule(patch: pytest.MonkeyPatch) -> None:
    """A replica is its host: one that lost its disk counts at once."""

    def renewed(self: Journal, promise: Promise | None, damage: str) -> Promise:
        return promise or Promise(self._folder.parent.name)

    def named(folder: Path, entropy: object, disk: object) -> str:
        return folder.parent.name

    patch.setattr(Journal, "_renewed", renewed)
    patch.setattr("cluster.tests.replication.shard_hosts.replica_id_of", named)


def give_a_checkpoint_without_its_last_rows(patch: pytest.MonkeyPatch) -> None:
    """Rows as of the last flush are given as those of now."""

    def make(rows: SimulatedRows, folder: Path, read_rows: object) -> Position:
        copied = dict(rows._files.rows)
        if APPLIED_KEY in rows.rows:
            copied[APPLIED_KEY] = rows.rows[APPLIED_KEY]
        rows.make_checkpoint(folder, copied, rows._files.damaged)
        return rows.applied()

    patch.setattr("cluster.replication.checkpointing.make_checkpoint", make)


def forget_the_log_above_a_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint replaces the log as well as the rows."""
    reopen = Journal.open

    def open_anew(
        self: Journal, applied: Position, keep: int | None = None, *, rows_replaced: bool = False
    ) -> None:
        if rows_replaced:
            keep = applied.index
        reopen(self, applied, keep, rows_replaced=rows_replaced)

    patch.setattr(Journal, "open", open_anew)


def quarantine_at_once(patch: pytest.MonkeyPatch) -> None:
    """Damage becomes an event although other hosts have sound rows."""
    patch.setattr(ReplicatedStore, "quarantines", property(lambda self: True))


def ignore_what_a_scrub_finds(patch: pytest.MonkeyPatch) -> None:
    """A follower with damaged rows stays as it is."""
    patch.setattr("cluster.replication.checkpointing._damaged", lambda store, damage: None)


def swap_without_a_sync(patch: pytest.MonkeyPatch) -> None:
    """The fetched files are put in place before they are durable."""
    patch.setattr("cluster.tests.simulation.row_folders.RowFolders.sync", lambda self, file: None)


def refuse_bad_pages(patch: pytest.MonkeyPatch) -> None:
    """An opening reads segments at once, and fails at a page that cannot be read."""

    def read(disk: Disk, handle: int, size: int, offset: int) -> bytes:
        return disk.pread(handle, size, offset)

    patch.setattr("storage.log.log_entries.read_piece", read)


def blame_the_other_host(patch: pytest.MonkeyPatch) -> None:
    """Rows that cannot be read here are damaged at the host that gave them."""

    async def checked_by(self: CheckpointFetch, host: str, number: int) -> Checked:
        return Checked(True, "they cannot be read")

    patch.setattr(CheckpointFetch, "_checked_by", checked_by)


def shape(*often: str) -> Shape:
    """A run in which these things happen to disks."""
    return Shape(disks=DiskShape(often))


_LAGGARD = "damage beside a laggard"
DISK_PLANTS: tuple[tuple[Plant, Shape], ...] = (
    (count_a_damaged_replica, shape(_LAGGARD)),
    (no_learner_rule, shape(_LAGGARD)),
    (give_a_checkpoint_without_its_last_rows, shape("rows of another", "damaged rows")),
    (
        forget_the_log_above_a_checkpoint,
        shape("rows of another")._replace(often=("isolate", "cut off")),
    ),
    (quarantine_at_once, shape("damaged rows")),
    (ignore_what_a_scrub_finds, shape("damaged rows")),
    (blame_the_other_host, shape("damaged rows and wrong views")),
    (swap_without_a_sync, shape("rows of another", "power cut in a switch")),
    (refuse_bad_pages, Shape(disks=DiskShape(("bad page",), has_bad_pages=True))),
)
"""Each with the kind of run in which it shows."""
