"""The processes of a service with several workers, as the system shows them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from compat_tests.node_process import NodeProcess


def worker_of(node: NodeProcess, shard: int) -> int:
    """The process that has a shard open; 0 while none has."""
    lock = str((node.data / f"shard-{shard}" / "LOCK").resolve())
    return next((pid for pid in processes(node.pid) if lock in _files(pid)), 0)


def processes(supervisor: int) -> list[int]:
    """The processes that the supervisor has started and that live."""
    found: list[int] = []
    for task in Path(f"/proc/{supervisor}/task").iterdir():
        with suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


def _files(pid: int) -> set[str]:
    with suppress(OSError):
        return {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
    return set()
