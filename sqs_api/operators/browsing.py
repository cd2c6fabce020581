"""Browsing: pages of messages that match a search, found by a bounded scan.

A token says how far the scan went: messages that come or go meanwhile move no other to another
page. A queue of several parts is scanned part by part, in the order of sequences.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec

from sqs_api.admin.asked import Asked
from sqs_api.gateway.sealer import Admit
from sqs_api.operators.operator_context import OperatorContext
from sqs_api.operators.shown_messages import Opened, opened
from visibility.content.filters import matches_inside, matches_outside
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.model import QueueDefinition
from visibility.contract.move_task import MessageFilter
from visibility.contract.outcomes import Browsed, BrowsedPage
from visibility.rules.browse import BrowseMessages

_STEP_MESSAGES = 100
SCANNED_MAX = 5_000
_SCANNED_BYTES_MAX = 32 << 20
_PAUSE_BYTES = 256 << 10
"""Opened and searched without a pause: about a millisecond."""
PHASES = {
    "all": (False, True),
    "visible": (False,),
    "in flight": (False,),
    "delayed": (True,),
    "held": (False,),
    "deleting": (False,),
}
"""The scans for each choice of states: of the delayed messages, and of all others."""
_HELD = ("held", "deleting")
"""States of held messages, which are found without a look at the others."""


class Position(msgspec.Struct, frozen=True, array_like=True):
    """The scan goes on in a phase after this message of a part, (0, 0) for its first."""

    phase: int = 0
    due_ms: int = 0
    sequence: int = 0
    part: int = 0
    """Number of the part; of an unsplit queue 0."""


class Scanned(msgspec.Struct, frozen=True):
    """The messages that match, and the position to go on from, None at the end."""

    messages: list[Opened]
    scanned: int
    position: Position | None


class Scan:
    """One scan of a queue."""

    def __init__(
        self,
        context: OperatorContext,
        asked: Asked,
        queue: QueueDefinition,
        *,
        state: str,
        search: MessageFilter,
        admit: Admit | None,
    ) -> None:
        self._context = context
        self._asked = asked
        self._parts = {_number(part): part for part in queue.all_parts()}
        self._state = state
        self._search = search
        self._admit = admit
        self._found: list[Opened] = []
        self._scanned = 0
        self._bytes = 0
        self._paused_at_bytes = 0

    async def run(self, position: Position, limit: int) -> Scanned:
        """Up to `limit` messages. Raises QueueError."""
        at: Position | None = position
        while at is not None and not self._is_full(limit):
            at = await self._step(at, limit)
        return Scanned(self._found, self._scanned, at)

    def _is_full(self, limit: int) -> bool:
        return (
            len(self._found) >= limit
            or self._scanned >= SCANNED_MAX
            or self._bytes >= _SCANNED_BYTES_MAX
        )

    async def _step(self, at: Position, limit: int) -> Position | None:
        """Scan a step; returns the position after it."""
        if at.part not in self._parts:  # it went meanwhile
            return self._next_part(at)
        phases = PHASES[self._state]
        is_delayed = phases[at.phase]
        plain = self._search == MessageFilter() and self._state in ("all", "delayed")
        wanted = min(limit - len(self._found), _STEP_MESSAGES) if plain else _STEP_MESSAGES
        page = await self._context.ask(
            self._asked,
            BrowseMessages(is_delayed, (at.due_ms, at.sequence), wanted, self._state in _HELD),
            self._parts[at.part],
        )
        assert isinstance(page, BrowsedPage)
        for number, found in enumerate(page.messages, 1):
            if self._bytes >= self._paused_at_bytes + _PAUSE_BYTES:
                self._paused_at_bytes = self._bytes
                await asyncio.sleep(0)  # other requests come first
            self._look(found)
            if self._is_full(limit) and number < len(page.messages):
                due_ms = found.due_ms if is_delayed else 0
                return Position(at.phase, due_ms, found.sequence, at.part)
        if page.next_token is not None:
            return Position(at.phase, *page.next_token, at.part)
        return self._next_part(at)

    def _next_part(self, at: Position) -> Position | None:
        """The first message of the next part, or of the next phase."""
        later = [number for number in self._parts if number > at.part]
        if later:
            return Position(at.phase, part=min(later))
        return Position(at.phase + 1) if at.phase + 1 < len(PHASES[self._state]) else None

    def _look(self, found: Browsed) -> None:
        self._scanned += 1
        self._bytes += len(found.message.data)
        if self._state not in ("all", found.state):
            return
        stored, lease = found.message, found.lease
        received = stored.receive_count if lease is None else lease.receive_count
        if not matches_outside(self._search, stored, received):
            return
        message = opened(self._context.sealer, found, self._admit)
        if matches_inside(self._search, message.body or "", message.extras):
            self._found.append(message)


def _number(part: QueueDefinition) -> int:
    return part.part_number


def write_token(position: Position | None) -> str | None:
    """A position for clients."""
    if position is None:
        return None
    return urlsafe_b64encode(msgspec.json.encode(position)).decode()


def read_token(token: str | None, state: str) -> Position:
    """The position in a token, by default the first. Raises InvalidParameterValue."""
    if token is None:
        return Position()
    try:
        position = msgspec.json.decode(urlsafe_b64decode(token), type=Position)
    except (ValueError, msgspec.MsgspecError):
        position = Position(-1)
    lowest = min(position.due_ms, position.sequence, position.part)
    if not 0 <= position.phase < len(PHASES[state]) or lowest < 0:
        raise InvalidParameterValue("token is not that of a page of this search.")
    return position
