"""The disk reserve: on a nearly full disk, sends are refused; receives and deletes work.

In a cluster the disk of the host that leads the shard counts, so the router asks there. A message
of another shard waits at its source until there is space.
"""

from __future__ import annotations

import os
from pathlib import Path

import structlog

from visibility.contract.actions import ACTIONS
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.operations import CreateQueue, Operation
from visibility.rules.arrivals import AcceptMessages
from visibility.rules.move_tasks import MoveSelected
from visibility.rules.resend import ResendMessage
from visibility.rules.transactions import FindTransaction, TransactMessages

_DISK_SHORT = "The service has no space for more messages. Please try again."
_TAKE_SPACE = frozenset(
    {
        *(action.request for action in ACTIONS.values() if action.takes_space),
        MoveSelected,
        ResendMessage,
    }
)
_ENOUGH_AGAIN = 1.1
"""Multiple of the reserve that must be free before sends are accepted again, to avoid flapping."""
_FILLED_BYTES_S = 5 << 30
"""No host writes faster, with all that other programs write to the disk; a client alone may write
200 MB a second."""
_UNSEEN_S = 1.0
"""Bound of the time between two looks."""


def _takes_space(operation: Operation) -> bool:
    if isinstance(operation, AcceptMessages):  # one that forgets or asks gives some back
        return not all(each.asks for each in operation.arrivals)
    if isinstance(operation, TransactMessages | FindTransaction):
        return operation.takes_space
    return type(operation) in _TAKE_SPACE


class DiskSpace:
    """Watches the file system of the data folder."""

    def __init__(self, folder: Path, reserve_bytes: int) -> None:
        """`reserve_bytes` 0: space is never short."""
        self._folder = folder
        self.reserve_bytes = reserve_bytes
        self._log = structlog.get_logger("disk")
        self.is_short = False
        """True while less than the reserve is free."""
        self._failure = ""
        """The reason for which the latest look failed; empty if it did not."""
        self.free_bytes = 0
        self._is_half_free = True
        self._safe_s = 0.0
        """Time in which the free space cannot go down to the reserve."""
        self.refused = 0
        """Requests that were refused for lack of space."""

    def is_shorter_than(self, reserves: float) -> bool:
        """True if less than this multiple of the reserve is free."""
        return self.free_bytes < self.reserve_bytes * reserves

    def refuses(self, request: type[Operation]) -> bool:
        """True for an action that takes space while there is little. Queues can be made down to
        half of the reserve: consumers do so when they start, and they free space."""
        return self.is_short and (request is not CreateQueue or self.is_shorter_than(0.5))

    def refuse(self) -> ServiceUnavailable:
        """The answer to a request that finds no space, which is counted."""
        self.refused += 1
        return ServiceUnavailable(_DISK_SHORT)

    def refusal(self, operation: Operation) -> ServiceUnavailable | None:
        """The answer to an operation that needs space while there is little; else None."""
        is_refused = self.refuses(type(operation)) and _takes_space(operation)
        return self.refuse() if is_refused else None

    def has_space(self) -> bool:
        """False while it is short."""
        return not self.is_short

    def has_much_space(self) -> bool:
        """True while at least half of the file system is free."""
        return self._is_half_free

    def look_if_due(self, interval_s: float, *, can_grow: bool) -> None:
        """Called at this interval: look, unless nobody could have filled the disk since the last
        look."""
        self._safe_s -= interval_s
        if self._safe_s < interval_s or not can_grow:
            self.look(can_grow=can_grow)

    def look(self, *, can_grow: bool = True) -> None:
        """Read the free space: some microseconds. `can_grow` is False when a log finds no space to
        grow."""
        try:
            there = os.statvfs(self._folder)
        except OSError as error:
            if str(error) != self._failure:  # once: the next look is a moment away
                self._log.error("disk_unreadable", error=str(error))
            self._failure = str(error)
            return
        self._failure = ""
        self.free_bytes = there.f_bavail * there.f_frsize
        self._is_half_free = 2 * there.f_bavail >= there.f_blocks
        needed = self.reserve_bytes * (_ENOUGH_AGAIN if self.is_short else 1.0)
        self._safe_s = min((self.free_bytes - needed) / _FILLED_BYTES_S, _UNSEEN_S)
        is_short = self.free_bytes < needed or not can_grow
        if is_short is not self.is_short:
            self.is_short = is_short
            say = self._log.error if is_short else self._log.warning
            name = "disk_short_sends_refused" if is_short else "disk_has_space_again"
            say(name, free_bytes=self.free_bytes, reserve_bytes=self.reserve_bytes)
