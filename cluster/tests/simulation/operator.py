"""An operator, who holds messages, releases them, and moves those that match a filter."""

from __future__ import annotations

from itertools import groupby

import msgspec

from cluster.parts.part_requests import to_part, with_sequence
from cluster.tests.simulation.client import Client, name_of
from compat_tests.faults.history import Hold, Outcome
from visibility.contract.model import QueueDefinition
from visibility.contract.move_task import MessageFilter
from visibility.contract.outcomes import Browsed, BrowsedPage, SelectedChanged
from visibility.rules.browse import BrowseMessages
from visibility.rules.hold_messages import HoldMessages, ReleaseMessages
from visibility.rules.move_tasks import MoveSelected
from visibility.tests import prepared

_MOST = 3
"""Messages that are held at a time."""


class HeldMessage:
    """A message that may be held."""

    def __init__(self, sequence: int, hold: Hold) -> None:
        self.sequence = sequence
        self.hold = hold


class Operator(Client):
    """See above."""

    async def browse(self, name: str, *, held: bool = False) -> list[Browsed] | None:
        """The first page of the messages of some part of a queue; None without an answer."""
        return await self._browse(self.random.choice(self.queue(name).all_parts()), held=held)

    async def _browse(self, part: QueueDefinition, *, held: bool) -> list[Browsed] | None:
        name = part.name
        request = to_part(prepared.prepared(part, BrowseMessages(held=held)), part)
        answer = (await self.ask(request, f"browse {name}")).answer
        return answer.messages if isinstance(answer, BrowsedPage) else None

    async def hold(self, name: str, delete_after_s: int) -> list[HeldMessage]:
        """Hold some waiting messages; with a time they are deleted then."""
        waiting = [each for each in await self.browse(name) or () if each.state == "visible"]
        chosen = self.random.sample(waiting, min(len(waiting), self.random.randint(1, _MOST)))
        if not chosen:
            return []
        operation = HoldMessages(
            [each.sequence for each in chosen],
            owner=self.name,
            delete_after_ms=delete_after_s * 1000,
        )
        part = with_sequence(self.queue(name), chosen[0].sequence)
        request = to_part(prepared.prepared(part, operation), part)
        reply = await self.ask(request, f"hold {len(chosen)} of {name}")
        outcome, answer = reply.outcome, reply.answer
        if isinstance(answer, SelectedChanged) and answer.kept:
            outcome = Outcome.UNKNOWN if answer.changed else Outcome.REFUSED
        if outcome is Outcome.REFUSED:
            return []
        found = []
        for each in chosen:
            message = each.message
            hold = Hold(
                name_of(message.data.decode()),
                name,
                message.message_id,
                reply.begun,
                reply.ended,
                outcome,
                delete_after_s,
            )
            self.simulation.note(f"{self.name} holds {hold.name} of {name}")
            self._history.holds.append(hold)
            found.append(HeldMessage(each.sequence, hold))
        return found

    async def release(self, held: list[HeldMessage]) -> None:
        """Release these, which are of one queue and were held in the same way."""
        first = held[0].hold
        operation = ReleaseMessages(
            [each.sequence for each in held], deleting=bool(first.deleted_after_s)
        )
        part = with_sequence(self.queue(first.queue), held[0].sequence)  # all are of one part
        request = to_part(prepared.prepared(part, operation), part)
        reply = await self.ask(request, f"release {len(held)} of {first.queue}")
        is_sure = isinstance(reply.answer, SelectedChanged) and not reply.answer.kept
        for each in held:
            each.hold.is_back |= is_sure
            for one in self._history.holds:
                # perhaps it was held again after one whose outcome is unknown
                if (one.queue, one.message_id) == (first.queue, each.hold.message_id):
                    one.released = min(one.released, reply.begun)

    async def release_all(self) -> None:
        """Release all that anybody holds; what is to be deleted will be."""
        open_ones = [each for each in self._history.holds if not each.deleted_after_s]
        for name, _ in groupby(sorted(each.queue for each in open_ones)):
            for part in self.queue(name).all_parts():
                await self._release_all_of(part, [one for one in open_ones if one.queue == name])

    async def _release_all_of(self, part: QueueDefinition, holds: list[Hold]) -> None:
        while True:
            page = await self._browse(part, held=True)
            if page is None:
                continue
            marked = [each.sequence for each in page if each.state == "held"]
            if not marked:
                return
            request = to_part(prepared.prepared(part, ReleaseMessages(marked)), part)
            reply = await self.ask(request, f"release all of {part.name}")
            for each in holds:
                each.released = min(each.released, reply.begun)

    async def move_matching(self, source: str, target: str | None) -> None:
        """Move the messages that match a filter, which does not open them: bodies are bare here."""
        wanted = self.random.choice(
            (
                MessageFilter(message_id=self.random.choice("0123456789abcdef")),
                MessageFilter(received_min=self.random.randint(1, 4)),
                MessageFilter(received_max=self.random.randint(1, 4)),
            )
        )
        request = prepared.prepared(self.queue(source), MoveSelected(filter=wanted))
        if target is not None:
            request = msgspec.structs.replace(request, destination=self.queue(target))
        await self.ask(request, f"move matching of {source}")
        self._history.tasks += 1
