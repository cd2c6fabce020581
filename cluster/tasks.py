"""Tasks that go on by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

import structlog

_T = TypeVar("_T")


def start_task(running: set[asyncio.Task[_T]], work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
    """Do this in a task, which is in `running` until it ends: the event loop keeps none alive."""
    task = asyncio.get_running_loop().create_task(work)
    running.add(task)
    task.add_done_callback(running.discard)
    return task


def start_logged(
    running: set[asyncio.Task[_T]],
    work: Coroutine[Any, Any, _T],
    log: structlog.stdlib.BoundLogger,
) -> asyncio.Task[_T]:
    """The same; an error that nobody waits for is logged."""
    task = start_task(running, work)
    task.add_done_callback(partial(_log_error, log))
    return task


def _log_error(log: structlog.stdlib.BoundLogger, task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("task_failed", exc_info=error)


def retrieved(task: asyncio.Task[Any]) -> None:
    """Retrieve the error of a task whose caller may be gone."""
    if not task.cancelled():
        task.exception()
