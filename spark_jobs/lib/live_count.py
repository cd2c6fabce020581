"""LiveCount: a sum over the tasks of Spark that moves while they run.

An accumulator of Spark gets a task's part when the task ends. So a task also tells the driver by
datagrams how far it is. Where they do not arrive, the sum moves at the end of each task only.
"""

from __future__ import annotations

import secrets
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hmac import compare_digest
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

if TYPE_CHECKING:  # executors need not load it
    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession

Count = Callable[[int], None]
"""Adds to a count, in a task."""

_TELL_S = 1.0
_TOKEN_BYTES = 16
DATAGRAM = struct.Struct(f"!{_TOKEN_BYTES}sqqqq")
"""The token, the task's stage, partition and attempt, and its count. The token keeps out others
who can reach the driver; there is nothing to be learnt or had but a wrong display."""
_READ_MAX = 10_000
"""Datagrams that one look at the sum takes."""
_TASKS_MAX = 100_000

Address = tuple[str, int]


class LiveCount:
    """Belongs to the driver. `add` goes to the tasks."""

    def __init__(self, session: SparkSession) -> None:
        context = session.sparkContext
        self._of_ended: Accumulator[int] = context.accumulator(0)
        self._told: dict[tuple[int, int], tuple[int, int]] = {}
        """Latest attempt and its count, by stage and partition."""
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        conf = context.getConf()
        host = conf.get("spark.driver.host") or "127.0.0.1"
        self._socket = _listening(conf.get("spark.driver.bindAddress") or host)
        address = None if self._socket is None else (host, self._socket.getsockname()[1])
        self.add: Count = _Add(self._of_ended, address, self._token)

    def __enter__(self) -> LiveCount:
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()

    @property
    def value(self) -> int:
        """The sum so far."""
        self._read()
        return max(self._of_ended.value, sum(count for _, count in self._told.values()))

    def _read(self) -> None:
        with suppress(OSError):  # nothing is there, or it is closed
            for _ in range(_READ_MAX if self._socket is not None else 0):
                assert self._socket is not None
                self._note(self._socket.recv(DATAGRAM.size + 1))

    def _note(self, told: bytes) -> None:
        if len(told) != DATAGRAM.size or not compare_digest(told[:_TOKEN_BYTES], self._token):
            return
        _, stage, partition, attempt, count = DATAGRAM.unpack(told)
        task, latest = (stage, partition), (attempt, count)
        if task in self._told or len(self._told) < _TASKS_MAX:
            self._told[task] = max(self._told.get(task, latest), latest)


def _listening(host: str) -> socket.socket | None:
    with suppress(OSError):
        family, place = _resolved(host, 0)
        found = socket.socket(family, socket.SOCK_DGRAM)
        try:
            found.setblocking(False)
            found.bind(place)
        except OSError:
            found.close()
            raise
        return found
    return None


@cache
def _resolved(host: str, port: int) -> tuple[int, Any]:
    """Family and address. Raises OSError."""
    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    return family, place


# -- in a task -------------------------------------------------------------------------------------


class _Task:
    """The running task of this process, and how far it is."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.count = 0
        self.tell_at_s = time.monotonic() + _TELL_S


_tasks: dict[bytes, _Task] = {}
"""The running task by token: a process of Spark runs one after the other."""


class _Add:
    def __init__(self, of_ended: Accumulator[int], address: Address | None, token: bytes) -> None:
        self._of_ended = of_ended
        self._address = address
        self._token = token

    def __call__(self, number: int) -> None:
        self._of_ended.add(number)
        context = TaskContext.get()
        if context is None or self._address is None:
            return
        attempt = context.taskAttemptId()
        task = _tasks.get(self._token)
        if task is None or task.attempt != attempt:
            task = _tasks[self._token] = _Task(attempt)
        task.count += number
        now_s = time.monotonic()
        if now_s >= task.tell_at_s:
            task.tell_at_s = now_s + _TELL_S
            place = context.stageId(), context.partitionId(), attempt
            _tell(self._address, DATAGRAM.pack(self._token, *place, task.count))


def _tell(address: Address, datagram: bytes) -> None:
    with suppress(OSError):  # the count is complete at the end of the task
        family, place = _resolved(*address)
        with socket.socket(family, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(datagram, place)
