"""The workers of a service, as the system shows them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from compat_tests.node_process import NodeProcess


def worker_of(node: NodeProcess, shard: int) -> int:
    """The process that has a shard open; 0 while none has."""
    lock = str((node.data / f"shard-{shard}" / "LOCK").resolve())
    return next((pid for pid in node.processes() if lock in _files(pid)), 0)


def _files(pid: int) -> set[str]:
    with suppress(OSError):
        return {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
    return set()
