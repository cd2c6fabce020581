"""Questions to a lake, each in a process of its own, so that the event loop never waits for it."""

from __future__ import annotations

import asyncio
import sys

import msgspec

READ_S = 60.0
"""After this the lake counts as unavailable, and the caller has to ask again later."""
_PYTHON = [sys.executable, "-EP", "-m", "sqs_api"]


class LakeSilent(Exception):
    """The lake cannot be read at present; the text gives the reason in one line."""


async def ask_lake(
    command: str, lake: str, task: msgspec.Struct, within_s: float = READ_S
) -> bytes:
    """Give a hidden command the task as JSON; returns its output. Raises LakeSilent."""
    pipe = asyncio.subprocess.PIPE
    worker = await asyncio.create_subprocess_exec(
        *_PYTHON, command, stdin=pipe, stdout=pipe, stderr=pipe
    )
    try:
        async with asyncio.timeout(within_s):
            output, errors = await worker.communicate(msgspec.json.encode(task))
    except TimeoutError as error:
        raise LakeSilent(f"{lake} does not answer") from error
    finally:
        if worker.returncode is None:  # the caller was cancelled, or the time is over
            worker.kill()
            await worker.wait()
    if worker.returncode:
        lines = errors.decode(errors="replace").strip().splitlines() or ["the process was killed"]
        raise LakeSilent(lines[-1].removeprefix("holdfast: "))
    return output
