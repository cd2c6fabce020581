"""Checkpoints of a shard's rows for other hosts: made here, and checked there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from storage.copies.scrub import InThread, Pace, RowFiles, read_rows
from storage.engines.file_rows import FileRows
from storage.engines.store import RowStore
from storage.log.entry import Position


def make_checkpoint(
    rows: RowStore, folder: Path, read_rows: Callable[[Path], RowFiles] = FileRows
) -> Position:
    """Make `folder` a checkpoint of the rows; returns the last Entry in it.

    For any thread. The first flush may take seconds; after the second little is left to write while
    the checkpoint holds the interpreter lock. Raises StoreFailed, DamagedRecord.
    """
    rows.flush()
    rows.flush()
    rows.checkpoint(folder)
    # Entries were applied meanwhile, so the checkpoint itself must tell.
    with closing(read_rows(folder)) as made:
        return made.applied()


async def check_rows_of(
    folder: Path,
    pace: Pace,
    in_thread: InThread,
    open_rows: Callable[[Path], RowFiles] = FileRows,
) -> Position:
    """Read all rows of a fetched checkpoint; returns the last Entry in it.

    The checksums of whole files are no proof: the host that gave them may have read damaged ones.
    Raises StoreFailed, DamagedRecord.
    """
    return await read_rows(partial(open_rows, folder), pace, in_thread)
