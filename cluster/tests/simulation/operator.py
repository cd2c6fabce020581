"""An operator, who holds messages, releases them, and moves those that match a filter."""

from __future__ import annotations

from itertools import groupby

import msgspec

from cluster.parts.part_requests import that_may_have
from cluster.tests.simulation.simulated_client import Client, name_of
from compat_tests.faults.fault_history import Hold, Outcome
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

    async def browse(self, part: QueueDefinition, *, held: bool = False) -> list[Browsed] | None:
        """The first page of a queue's or part's messages; None without an answer."""
        request = prepared.prepared(part, BrowseMessages(held=held))
        answer = (await self.ask(request, f"browse {part.name}")).answer
        return answer.messages if isinstance(answer, BrowsedPage) else None

    async def hold(self, name: str, delete_after_s: int) -> list[HeldMessage]:
        """Hold some waiting messages; with a time they are deleted then."""
        parts = self.queue(name).all_parts()
        part = parts[0] if len(parts) == 1 else self.random.choice(parts)
        waiting = [each for each in await self.browse(part) or () if each.state == "visible"]
        chosen = self.random.sample(waiting, min(len(waiting), self.random.randint(1, _MOST)))
        if not chosen:
            return []
        operation = HoldMessages(
            [each.sequence for each in chosen],
            owner=self.name,
            delete_after_ms=delete_after_s * 1000,
        )
        request = prepared.prepared(part, operation)
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
        part = that_may_have(self.queue(first.queue), held[0].sequence)[0]
        request = prepared.prepared(part, operation)
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
            of_queue = [each for each in open_ones if each.queue == name]
            while await self._release_some(self.queue(name), of_queue):
                pass

    async def _release_some(self, queue: QueueDefinition, holds: list[Hold]) -> bool:
        """Release those that each part shows; True if there may be more."""
        may_be_more = False
        for part in queue.all_parts():
            page = await self.browse(part, held=True)
            marked = [each.sequence for each in page or () if each.state == "held"]
            may_be_more |= page is None or bool(marked)
            if marked:
                request = prepared.prepared(part, ReleaseMessages(marked))
                reply = await self.ask(request, f"release all of {part.name}")
                for each in holds:
                    each.released = min(each.released, reply.begun)
        return may_be_more

    async def move_matching(self, source: str, target: str | None) -> None:
        """Move the messages that match a filter, which does not open them: bodies are bare here."""
        if await self.has_task_at_former_home(source):
            return
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
