"""The workers of a service, as the system shows them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from compat_tests.facade import eventually
from compat_tests.node_process import NodeProcess, children_of


def worker_of(node: NodeProcess, shard: int) -> int:
    """The process that has a shard open; 0 while none has."""
    return _process_with(node.data / f"shard-{shard}" / "LOCK", node.processes())


def kill_worker_of(node: NodeProcess, shard: int) -> None:
    """kill -9 the process that has a shard open, once one has, and wait for the next one."""
    found: list[int] = []

    def is_open(but: int = 0) -> bool:
        found[:] = [worker_of(node, shard)]
        return found[0] not in (0, but)

    eventually(is_open)
    (killed,) = found
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: is_open(killed))


def worker_in(data: Path, supervisor: int) -> int:
    """The process below a supervisor that has the shards of a data folder open; 0 while none
    has."""
    locks = sorted(data.glob("shard-*/LOCK"))
    return _process_with(locks[0], children_of(supervisor)) if locks else 0


def _process_with(file: Path, processes: Iterable[int]) -> int:
    lock = str(file.resolve())
    return next((pid for pid in processes if lock in _files(pid)), 0)


def _files(pid: int) -> set[str]:
    with suppress(OSError):
        return {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
    return set()
