"""RowsPlace: the files of a host's rows, and what opens them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from storage.copies.checkpoint_files import CheckpointFiles, SystemFiles
from storage.copies.scrub import InThread, RowFiles, to_its_end
from storage.engines.file_rows import FileRows
from storage.engines.rocks import RocksRows
from storage.engines.store import RowStore
from storage.log import Disk, SystemDisk

_T = TypeVar("_T")


async def _in_thread(work: Callable[[], _T], /) -> _T:
    """Cancelled, it waits for the thread: a folder is removed once nothing writes to it."""
    return await to_its_end(asyncio.to_thread(work))


class RowsPlace(NamedTuple):
    """RocksDB's rows in the files of this machine, unless the simulator says otherwise."""

    files: CheckpointFiles
    open_rows: Callable[[Path], RowStore] = RocksRows
    """May raise StoreFailed."""
    read_rows: Callable[[Path], RowFiles] = FileRows
    """Opens the files a second time, to look for damage."""
    new_disk: Callable[[], Disk] = SystemDisk
    """For the log beside the rows."""
    in_thread: InThread = _in_thread


ON_THIS_MACHINE = RowsPlace(SystemFiles())
