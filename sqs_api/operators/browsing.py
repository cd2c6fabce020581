"""Browsing: pages of messages that match a search, found by scans that are bounded in time.

A scan asks the shard for page after page; other requests are served between two. The shard itself
leaves out what does not match by its id, times, source or receives.

A token says how far the scan went: messages that come or go meanwhile move no other to another
page. A queue of several parts is scanned part by part, in the order of sequences.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter

import msgspec

from sqs_api.admin.asked import Asked
from sqs_api.gateway.sealer import Admit
from sqs_api.operators.operator_context import OperatorContext
from sqs_api.operators.shown_messages import Opened, opened
from visibility.content.filters import matches_inside
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.model import QueueDefinition
from visibility.contract.move_task import MessageFilter
from visibility.contract.outcomes import Browsed, BrowsedPage
from visibility.rules.browse import BrowseMessages, is_wanted

STEP_MESSAGES = 100
SCAN_S = 1.0
"""Time of a scan, after which it says how far it is."""
_FOUND_BYTES_MAX = 32 << 20
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


class ScannedStates(msgspec.Struct, frozen=True):
    """Numbers of the messages that match by their state, otherwise as `Scanned`."""

    states: Counter[str]
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
        self._queue_id = queue.queue_id
        self._parts = {_number(part): part for part in queue.all_parts()}
        self._state = state
        self._search = search
        self._filter = None if search == MessageFilter() else search
        self._admit = admit
        self._found: list[Opened] = []
        self._found_bytes = 0
        self._states = Counter[str]()
        self._counts = False
        """True if messages are only counted."""
        self._scanned = 0
        self._opened_bytes = 0
        """Since the last pause."""

    async def run(self, position: Position, limit: int) -> Scanned:
        """Up to `limit` messages. Raises QueueError."""
        if self._filter is None and self._state in ("all", "delayed"):
            at = await self._walk(position, limit)  # a page, which is soon found
        else:
            at = await self._walk_in_turn(position, limit)
        return Scanned(self._found, self._scanned, at)

    async def count(self, position: Position) -> ScannedStates:
        """Count the messages. Raises QueueError."""
        self._counts = True
        at = await self._walk_in_turn(position, STEP_MESSAGES)
        return ScannedStates(self._states, self._scanned, at)

    async def _walk_in_turn(self, position: Position, limit: int) -> Position | None:
        goes_on = position != Position()
        turns, user = self._context.scans, self._asked.caller.arn
        async with turns.turn(user, self._queue_id, goes_on=goes_on):
            return await self._walk(position, limit)

    async def _walk(self, position: Position, limit: int) -> Position | None:
        until_s = self._context.monotonic_s() + SCAN_S
        at: Position | None = position
        while at is not None and not self._is_full(limit):
            at = await self._step(at, limit)
            await self._pause()
            if self._context.monotonic_s() >= until_s:
                break
        return at

    async def _pause(self) -> None:
        """Other requests come first."""
        self._opened_bytes = 0
        await asyncio.sleep(0)

    def _is_full(self, limit: int) -> bool:
        return len(self._found) >= limit or self._found_bytes >= _FOUND_BYTES_MAX

    async def _step(self, at: Position, limit: int) -> Position | None:
        """Scan a step; returns the position after it."""
        if at.part not in self._parts:  # it went meanwhile
            return self._next_part(at)
        is_delayed = PHASES[self._state][at.phase]
        all_match = self._state in ("all", "delayed") and not self._search.opens
        wanted = min(limit - len(self._found), STEP_MESSAGES) if all_match else STEP_MESSAGES
        is_held = self._state in _HELD
        after = (at.due_ms, at.sequence)
        look = BrowseMessages(is_delayed, after, wanted, is_held, filter=self._filter)
        page = await self._context.ask(self._asked, look, self._parts[at.part])
        assert isinstance(page, BrowsedPage)
        for number, found in enumerate(page.messages, 1):
            if self._opened_bytes >= _PAUSE_BYTES:
                await self._pause()
            self._look(found)
            if self._is_full(limit) and number < len(page.messages):
                self._scanned += number
                due_ms = found.due_ms if is_delayed else 0
                return Position(at.phase, due_ms, found.sequence, at.part)
        self._scanned += max(page.looked_at, len(page.messages))
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
        if self._state not in ("all", found.state):
            return
        if not is_wanted(self._search, found):
            return
        if self._counts and not self._search.opens:
            self._states[found.state] += 1
            return
        self._opened_bytes += len(found.message.data)
        message = opened(self._context.sealer, found, self._admit)
        if not matches_inside(self._search, message.body or "", message.extras):
            return
        if self._counts:
            self._states[found.state] += 1
        else:
            self._found.append(message)
            self._found_bytes += len(found.message.data)


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
