"""A start after a kill: workers that still start have the port, and no shard by which they could be
noticed."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sqs_api.settings.service_note import FILE_NAME
from sqs_api.workers.supervisor import once_free


def taken(times: int, number: int = errno.EADDRINUSE) -> Callable[[], Awaitable[int]]:
    """Listens after a number of refusals, and counts them."""
    refused = 0

    async def listen() -> int:
        nonlocal refused
        if refused < times:
            refused += 1
            raise OSError(number, os.strerror(number))
        return refused

    return listen


async def test_a_port_that_workers_of_a_killed_service_have_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("{}")

    assert await once_free(tmp_path, taken(3)) == 3


async def test_another_program_s_port_is_refused_at_once(tmp_path: Path) -> None:
    """The last service was stopped, or there was none."""
    with pytest.raises(OSError, match="in use"):
        await once_free(tmp_path, taken(1))


async def test_other_errors_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("{}")

    with pytest.raises(PermissionError):
        await once_free(tmp_path, taken(1, errno.EACCES))
