"""A fresh folder of rows that takes the place of one with damage.

    DATA/shard-0/REBUILD    known damage, with the ids of queues to rebuild: the next load rebuilds
                            the rows
    DATA/shard-0.fresh/     rows that are being made; they count once the others are out of the way
    DATA/shard-0.damaged/   the rows before the last switch, for a closer look; it may be removed

A switch renames twice. A start that finds fresh rows alone finishes it; beside others it drops
them. So the rows are whole at any instant, and a kill costs the time only. All functions block, and
raise OSError.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from storage.engines.store import StoreFailed
from storage.files.copying import FOLDER_MODE, replace_file, sync_folders
from storage.files.folder import sync_folder

_MARK = "REBUILD"


def fresh_of(folder: Path) -> Path:
    """The folder of the rows that are to replace those in `folder`."""
    return folder.with_name(folder.name + ".fresh")


def damaged_of(folder: Path) -> Path:
    """The folder of the rows that were replaced."""
    return folder.with_name(folder.name + ".damaged")


def make_room(folder: Path) -> None:
    """Have room for another copy of these rows; those of an earlier damage go if they must. Raises
    StoreFailed."""
    needed = sum(file.stat().st_size for file in folder.glob("*.sst"))
    if needed > _free(folder):
        _remove(damaged_of(folder))
    free = _free(folder)
    if needed > free:
        raise StoreFailed(
            f"cannot rebuild {folder}: it needs {needed >> 20} MiB, its disk has {free >> 20} MiB "
            "free. Nothing was changed: free some space, or copy what can be read to another disk "
            f"with `holdfast salvage {folder.parent} --data NEW`"
        ) from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder.parent))


def make_fresh(folder: Path) -> Path:
    """An empty folder for rows. Raises StoreFailed without room."""
    drop_fresh(folder)
    make_room(folder)
    fresh_of(folder).mkdir(mode=FOLDER_MODE)
    return fresh_of(folder)


def drop_fresh(folder: Path) -> None:
    """Remove rows that are not whole."""
    _remove(fresh_of(folder))


def switch(folder: Path) -> None:
    """Put the fresh rows, which are closed and whole, in the place of the others, durably."""
    _remove(damaged_of(folder))
    sync_folders(fresh_of(folder))
    if folder.exists():
        folder.rename(damaged_of(folder))
    sync_folder(folder.parent)
    finish_switch(folder)


def finish_switch(folder: Path) -> None:
    """Finish or drop what a crash interrupted, before the rows are opened."""
    if folder.exists():
        drop_fresh(folder)
    elif fresh_of(folder).exists():
        fresh_of(folder).rename(folder)
        sync_folder(folder.parent)


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder.parent).free


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


# -- the mark --------------------------------------------------------------------------------------


def note_damage(folder: Path, *queue_ids: int) -> None:
    """Have the next load rebuild the rows, and these queues from their messages."""
    ids = sorted(damaged_queues(folder).union(queue_ids))
    replace_file(folder / _MARK, " ".join(map(str, ids)).encode())
    sync_folder(folder)


def has_damage(folder: Path) -> bool:
    """True if there is a mark."""
    return (folder / _MARK).exists()


def damaged_queues(folder: Path) -> set[int]:
    """The ids in the mark. A wrong one does no harm: that queue is rebuilt, too."""
    if not has_damage(folder):
        return set()
    return {int(word) for word in (folder / _MARK).read_bytes().split() if word.isdigit()}
