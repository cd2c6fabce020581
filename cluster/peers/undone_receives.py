"""UndoneReceives: receives that may have been decided although nobody gets their messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from cluster.peers.held_requests import Routed
from cluster.peers.peer_settings import ForwardingSettings
from visibility.contract.errors import QueueError
from visibility.contract.operations import ReceiveMessage
from visibility.contract.outcomes import Answer
from visibility.rules.acknowledge import UndoReceive


class UndoneReceives:
    """Belongs to the event loop's thread."""

    def __init__(self, settings: ForwardingSettings, submit: Callable[[Routed], None]) -> None:
        self._settings = settings
        self._submit = submit
        self._under_way = 0
        self._log = structlog.get_logger("forwarding")

    def begin(self, ticket: Routed) -> None:
        """Have a request undone, if it is a receive that may have been decided."""
        request = ticket.request
        if not ticket.is_retry or type(request.operation) is not ReceiveMessage:
            return
        if self._under_way >= self._settings.held_max:
            self._log.warning("receive_not_undone", request_id=request.request_id)
            return
        self._under_way += 1
        undo = Routed(
            msgspec.structs.replace(request, operation=UndoReceive(), dead_letter_queue=None),
            self._undone,
            begun_s=ticket.begun_s,
            give_up_s=ticket.begun_s + self._settings.undo_s,
            is_retry=True,
            undoes=True,
        )
        asyncio.get_running_loop().call_soon(self._submit, undo)

    def _undone(self, answer: Answer | QueueError) -> None:
        self._under_way -= 1
