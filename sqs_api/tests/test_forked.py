"""Workers that are copies of the supervisor's process."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from sqs_api.workers.forked import ForkedProcess, Started, fork_workers

_SILENT_S = 5.0


def _echo(conversation: int, descriptors: int) -> int:
    """A worker that says what it hears, until the supervisor's end; its status is a number that it
    heard."""
    with socket.socket(fileno=conversation) as pair, socket.socket(fileno=descriptors):
        heard = b"0"
        while data := pair.recv(64):
            heard = data
            pair.send(data)
        return int(heard)


def _fail(conversation: int, descriptors: int) -> int:
    raise ValueError("a bug")


@pytest.fixture
def two() -> Iterator[list[Started]]:
    started = fork_workers(2, _echo)
    for each in started:
        each.pairs.conversation.settimeout(_SILENT_S)
    yield started
    for each in started:
        for end in each.pairs:
            end.close()
        if each.process.returncode is None:
            with suppress(ProcessLookupError, ChildProcessError):
                each.process.kill()
                os.waitpid(each.process.pid, 0)


async def test_each_notices_the_end_of_its_own_conversation(two: list[Started]) -> None:
    """The later one has no copy of the sockets to the earlier one."""
    first, second = two
    for number, each in enumerate(two):
        each.pairs.conversation.send(b"%d" % (number + 3))
        assert each.pairs.conversation.recv(64) == b"%d" % (number + 3)

    first.pairs.conversation.close()

    assert await first.process.wait() == 3
    second.pairs.conversation.send(b"7")
    assert second.pairs.conversation.recv(64) == b"7"
    second.pairs.conversation.close()
    assert await second.process.wait() == second.process.returncode == 7


async def test_a_kill_is_seen(two: list[Started]) -> None:
    two[0].process.kill()

    assert await two[0].process.wait() == -signal.SIGKILL
    assert two[0].pairs.conversation.recv(64) == b""


async def test_a_bug_ends_the_copy_and_not_this_process(capfd: pytest.CaptureFixture[str]) -> None:
    (failed,) = fork_workers(1, _fail)

    assert await failed.process.wait() == 1
    for end in failed.pairs:
        end.close()
    assert "ValueError: a bug" in capfd.readouterr().err


async def test_without_room_for_a_process_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    fork, made = os.fork, list[int]()

    def limited() -> int:
        if made:
            raise BlockingIOError("no more processes")
        made.append(fork())
        return made[0]

    monkeypatch.setattr(os, "fork", limited)

    with pytest.raises(BlockingIOError):
        fork_workers(2, _echo)

    with pytest.raises(ProcessLookupError):
        ForkedProcess(made[0]).kill()
