"""Tasks that go on by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


def start_task(running: set[asyncio.Task[_T]], work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
    """Do this in a task, which is in `running` until it ends: the event loop keeps none alive."""
    task = asyncio.get_running_loop().create_task(work)
    running.add(task)
    task.add_done_callback(running.discard)
    return task
