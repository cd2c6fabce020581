"""The clients: each method makes calls and records them, with their outcomes, in the history."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import msgspec

from cluster.tests.simulation.simulated_queues import VISIBILITY_S, WINDOW_MS, named
from cluster.tests.simulation.simulation import Call, Reply, Simulation
from compat_tests.faults.fault_history import Change, Delete, Delivery, Outcome, Removal, Send
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.model import QueueDefinition, Receipt, Request
from visibility.contract.operations import (
    ListMessageMoveTasks,
    SendMessageBatch,
    SendMessageBatchRequestEntry,
)
from visibility.contract.outcomes import BrowsedPage, Deliveries, Progress
from visibility.contract.results import (
    DeleteMessageBatchResult,
    ListMessageMoveTasksResult,
    SendMessageBatchResult,
    SendMessageResult,
)
from visibility.rules.at_most_once import RemoveTaken
from visibility.rules.browse import BrowseMessages
from visibility.rules.move_tasks import MoveSelected
from visibility.rules.on_delete import MoveDeleted
from visibility.rules.queues import QueueChanged
from visibility.tests import prepared

_IN_TIME_S = 3.0
"""A visibility timeout is changed while at least this much of it remains."""
_AGAIN_S = 0.2
_RETRIED_S_MAX = 200.0
"""Sends are retried within the five minutes in which ids are remembered."""
_EVER_MS = 1 << 60
_PADDINGS = (0, 10, 10, 200, 350)
"""Sizes of bodies, beside their names."""


class Held:
    """A delivery and its handle."""

    def __init__(self, delivery: Delivery, receipt: Receipt) -> None:
        self.delivery = delivery
        self.receipt = receipt


class Client:
    """A client with its own source of chance."""

    def __init__(self, simulation: Simulation, name: str, random: Random) -> None:
        self.simulation = simulation
        self.name = name
        self.random = random
        self._history = simulation.history
        self._sent = 0

    def queue(self, name: str) -> QueueDefinition:
        """The queue's present definition."""
        return named(self.simulation.machine.queues, name)

    async def ask(self, request: Request, text: str) -> Reply:
        """Send a request, and note its outcome."""
        reply = await self.simulation.ask(request)
        self._note(text, reply)
        return reply

    def _note(self, text: str, reply: Reply) -> None:
        refusal = reply.answer.code if reply.outcome is Outcome.REFUSED else ""  # type: ignore[union-attr]
        self.simulation.note(f"{self.name} {text}: {reply.outcome.value} {refusal}")

    # -- sending -----------------------------------------------------------------------------------

    def new_body(self, *, padded_to: int = 0) -> str:
        """A body that names its message."""
        self._sent += 1
        if padded_to:
            return f"{self.name}-{self._sent}:".ljust(padded_to, "x")
        return f"{self.name}-{self._sent}:" + "x" * self.random.choice(_PADDINGS)

    async def send(
        self,
        queue: str,
        bodies: Sequence[str],
        *,
        group: str = "",
        place: int = 0,
        delay_s: int = 0,
    ) -> Outcome:
        """Send these to one group, as a batch if there are several; an unknown FIFO send is
        retried."""
        reply = await self.ask(
            self._send_request(queue, bodies, group, delay_s), f"send {bodies[0][:12]}"
        )
        self._sent_as(reply, queue, bodies, group, place, delay_s)
        return reply.outcome

    async def schedule(
        self, queue: str, bodies: Sequence[str], *, group: str, delay_s: int
    ) -> None:
        """Send these, to be delivered at an instant; while no shard tells the time, none."""
        now_ms = self.simulation.time.now_ms()
        if not now_ms:
            return
        begun, at_ms = self.simulation.time.read(), now_ms + delay_s * 1000
        definition = self.queue(queue)
        parts = [
            prepared.content(body, definition, group=group or None, at_ms=at_ms) for body in bodies
        ]
        entries = [SendMessageBatchRequestEntry(str(number)) for number in range(len(bodies))]
        request = prepared.prepared(definition, SendMessageBatch(entries=entries), parts)
        reply = await self.ask(request, f"schedule {bodies[0][:12]}")
        left_s = max(0.0, delay_s - (reply.begun - begun))
        self._sent_as(reply, queue, bodies, group, 0, left_s)

    async def send_by_priority(
        self, queue: str, bodies: Sequence[str], priorities: Sequence[int]
    ) -> None:
        """Send these, of a priority each."""
        definition = self.queue(queue)
        parts = [
            prepared.content(body, definition, level=priority + 1)
            for body, priority in zip(bodies, priorities, strict=True)
        ]
        entries = [SendMessageBatchRequestEntry(str(number)) for number in range(len(bodies))]
        request = prepared.prepared(definition, SendMessageBatch(entries=entries), parts)
        reply = await self.ask(request, f"send {bodies[0][:12]}")
        self._sent_as(reply, queue, bodies, "", 0, 0, priorities)

    async def send_by_clock(
        self, queue: str, bodies: Sequence[str], behind_ms: Sequence[int | None]
    ) -> None:
        """Send these, by clocks that are behind by as much each; None for no time."""
        now_ms, set_back = self.simulation.time.now_ms(), len(self._history.set_back)
        if not now_ms:
            return
        times = [0 if behind is None else now_ms - behind for behind in behind_ms]
        definition = self.queue(queue)
        parts = [
            prepared.content(body, definition, sent_at_ms=at_ms)
            for body, at_ms in zip(bodies, times, strict=True)
        ]
        entries = [SendMessageBatchRequestEntry(str(number)) for number in range(len(bodies))]
        request = prepared.prepared(definition, SendMessageBatch(entries=entries), parts)
        reply = await self.ask(request, f"send by clock {bodies[0][:12]}")
        ended_ms = self.simulation.time.now_ms()
        was_set_back = len(self._history.set_back) > set_back  # then all may have been ahead
        clocks = [0 if was_set_back or at_ms > now_ms else at_ms for at_ms in times]
        self._sent_as(reply, queue, bodies, "", 0, 0, clocks_ms=clocks, ended_ms=ended_ms)

    async def send_twice_at_once(
        self, queue: str, bodies: Sequence[str], *, group: str, place: int
    ) -> Outcome:
        """An impatient client repeats its request before the first is answered."""
        calls = [await self.simulation.call(self._send_request(queue, bodies, group, 0))]
        await asyncio.sleep(self.random.choice((0.0, 0.0005, 0.002)))
        await self.simulation.connected()
        if self.simulation.time.read() < calls[0].begun + _RETRIED_S_MAX:
            calls.append(await self.simulation.call(self._send_request(queue, bodies, group, 0)))
        outcomes = []
        for call in calls:
            reply = await call.reply
            self._note(f"send at once {bodies[0][:12]}", reply)
            self._sent_as(reply, queue, bodies, group, place, 0)
            outcomes.append(reply.outcome)
        return Outcome.DONE if Outcome.DONE in outcomes else outcomes[0]

    def _send_request(self, queue: str, bodies: Sequence[str], group: str, delay_s: int) -> Request:
        definition = self.queue(queue)
        if len(bodies) == 1:
            return prepared.send(
                definition, bodies[0], group=group or None, delay_s=delay_s or None
            )
        entries = [
            SendMessageBatchRequestEntry(str(number), delay_seconds=delay_s or None)
            for number in range(len(bodies))
        ]
        parts = [prepared.content(body, definition, group=group or None) for body in bodies]
        return prepared.prepared(definition, SendMessageBatch(entries=entries), parts)

    def _sent_as(
        self,
        reply: Reply,
        queue: str,
        bodies: Sequence[str],
        group: str,
        place: int,
        delay_s: float,
        priorities: Sequence[int] = (),
        clocks_ms: Sequence[int] = (),
        ended_ms: int = 0,
    ) -> None:
        ids: dict[str, str] = {}
        unknown: set[str] = set()
        if isinstance(reply.answer, SendMessageResult):
            ids["0"] = reply.answer.message_id
        elif isinstance(reply.answer, SendMessageBatchResult):
            ids = {entry.id: entry.message_id for entry in reply.answer.successful or ()}
            failed = reply.answer.failed or ()
            unknown = {entry.id for entry in failed if not entry.sender_fault}
        for number, body in enumerate(bodies):
            outcome = reply.outcome
            if outcome is Outcome.DONE and str(number) not in ids:
                outcome = Outcome.UNKNOWN if str(number) in unknown else Outcome.REFUSED
            self._history.sends.append(
                Send(
                    name_of(body),
                    queue,
                    body,
                    reply.begun,
                    reply.ended,
                    outcome,
                    ids.get(str(number), ""),
                    group,
                    place + number if place else 0,
                    delay_s,
                    priority=priorities[number] if priorities else 0,
                    clock_ms=clocks_ms[number] if clocks_ms else 0,
                    is_in_time=bool(clocks_ms) and 0 < ended_ms < clocks_ms[number] + WINDOW_MS,
                )
            )
            self.simulation.depends(self._history.sends, reply)

    async def send_in_order(self, queue: str, group: str, place: int) -> int | None:
        """Send one or more messages to a FIFO group, repeated until they are known to have arrived.

        Returns the next place; None if the outcome was unknown for too long: then the group is
        abandoned.
        """
        bodies = [self.new_body() for _ in range(self.random.choice((1, 1, 1, 3, 10)))]
        begun = self.simulation.time.read()
        while True:
            await self.simulation.connected()  # a restart may set the shard's clock forward
            if self.simulation.time.read() > begun + _RETRIED_S_MAX:
                return None
            send = self.send_twice_at_once if self.random.random() < 0.3 else self.send
            outcome = await send(queue, bodies, group=group, place=place)
            if outcome is not Outcome.UNKNOWN:
                assert outcome is Outcome.DONE, "a FIFO send was refused"
                return place + len(bodies)
            await asyncio.sleep(self.random.uniform(0, _AGAIN_S))

    # -- receiving ---------------------------------------------------------------------------------

    async def receive(
        self, queue: str, most: int = 10, *, timeout_s: int | None = None, wait_s: int = 0
    ) -> list[Held] | None:
        """Receive; None if the outcome is unknown, or it was answered 503."""
        request = self._receive_request(queue, most, timeout_s, wait_s)
        begun_s = asyncio.get_running_loop().time()
        reply = await self.ask(request, f"receive {queue}")
        if type(reply.answer) is ServiceUnavailable:
            hidden_s = VISIBILITY_S if timeout_s is None else timeout_s
            is_undone = await self.simulation.undone(request, begun_s)
            if is_undone and self.simulation.time.read() < reply.begun + hidden_s - _IN_TIME_S:
                self.simulation.note(f"{self.name} received nothing")
                return None
        return self._received(reply, queue, timeout_s)

    async def poll_and_hang_up(self, queue: str, wait_s: int) -> None:
        """A long poll whose client goes away; messages handed out all the same are returned, as in
        the gateway."""
        call = await self.simulation.call(self._receive_request(queue, 3, None, wait_s))
        await asyncio.sleep(self.random.choice((0.0, 0.001, 0.5)))
        if self.simulation.hang_up(call):
            self.simulation.note(f"{self.name} hung up")
            return
        await self._give_back(queue, call)

    async def _give_back(self, queue: str, call: Call) -> None:
        reply = await call.reply
        self._note(f"hung up {queue}", reply)
        self._history.unknown_receives[queue] += 1
        if isinstance(reply.answer, Deliveries) and reply.answer.leases:
            receipts = [
                _receipt(lease.original_sequence or lease.sequence, lease.receive_count)
                for lease in reply.answer.leases
            ]
            await self.ask(prepared.give_back(self.queue(queue), receipts), "give back")

    def _receive_request(
        self, queue: str, most: int, timeout_s: int | None, wait_s: int
    ) -> Request:
        definition = self.queue(queue)
        target = self.simulation.machine.queues.dead_letter_queue(definition)
        request = prepared.receive(
            definition, most, timeout_s=timeout_s, wait_s=wait_s or None, dead_letter_queue=target
        )
        return msgspec.structs.replace(request, request_id=self.simulation.new_id())

    def _received(self, reply: Reply, queue: str, timeout_s: int | None) -> list[Held] | None:
        if not isinstance(reply.answer, Deliveries):
            self._history.unknown_receives[queue] += 1
            return None
        hidden_s = VISIBILITY_S if timeout_s is None else timeout_s
        held: list[Held] = []
        for lease, message in zip(reply.answer.leases, reply.answer.messages, strict=True):
            body = message.data.decode()
            delivery = Delivery(
                name_of(body),
                queue,
                body,
                message.message_id,
                lease.receive_count,
                reply.begun,
                reply.ended,
                hidden_s,
                tuple(each.delivery.name for each in held),
                message.death.cause if message.death else "",
                message.death.at_ms if message.death else 0,
                message.origin.message_id if message.origin else message.message_id,
            )
            self._history.deliveries.append(delivery)
            held.append(
                Held(
                    delivery,
                    _receipt(lease.original_sequence or lease.sequence, lease.receive_count),
                )
            )
            self.simulation.note(
                f"{self.name} has {delivery.name} {lease.receive_count} {message.message_id}"
            )
        return held

    async def note_written(self, all_held: Sequence[Held]) -> None:
        """Have what was received for good removed, as the gateway does once it wrote the answer."""
        receipts = [held.receipt for held in all_held]
        queue = self.queue(all_held[0].delivery.queue)
        await self.ask(prepared.prepared(queue, RemoveTaken(), receipts), "remove what it took")

    # -- deliveries --------------------------------------------------------------------------------

    async def delete(self, held: Held) -> None:
        """Delete by handle."""
        queue = self.queue(held.delivery.queue)
        reply = await self.ask(prepared.delete(queue, held.receipt), f"delete {held.delivery.name}")
        self._deleted(held, reply, reply.outcome)

    async def delete_twice_at_once(self, held: Held) -> None:
        """An impatient client repeats its request before the first is answered."""
        queue = self.queue(held.delivery.queue)
        first = await self.simulation.call(prepared.delete(queue, held.receipt))
        await asyncio.sleep(self.random.choice((0.0, 0.0005, 0.002)))
        second = await self.simulation.call(prepared.delete(queue, held.receipt))
        for call in (first, second):
            reply = await call.reply
            self._note(f"delete at once {held.delivery.name}", reply)
            self._deleted(held, reply, reply.outcome)

    async def delete_batch(self, all_held: Sequence[Held]) -> None:
        """Delete these in one request; they are of one queue."""
        queue = self.queue(all_held[0].delivery.queue)
        request = prepared.delete_batch(queue, [held.receipt for held in all_held])
        reply = await self.ask(request, f"delete {len(all_held)} of {queue.name}")
        done: set[str] = set()
        if isinstance(reply.answer, DeleteMessageBatchResult):
            done = {entry.id for entry in reply.answer.successful or ()}
        for number, held in enumerate(all_held):
            is_refused = reply.outcome is Outcome.DONE and str(number) not in done
            self._deleted(held, reply, Outcome.REFUSED if is_refused else reply.outcome)

    def _deleted(self, held: Held, reply: Reply, outcome: Outcome) -> None:
        self._history.deletes.append(Delete(held.delivery, reply.begun, reply.ended, outcome))
        self.simulation.depends(self._history.deletes, reply)

    async def change_visibility(self, held: Held, timeout_s: int) -> None:
        """Change the visibility timeout, if enough of it remains: an outdated handle changes
        nothing."""
        delivery = held.delivery
        until = delivery.begun + delivery.hidden_s
        if (
            self.simulation.time.read() > until - _IN_TIME_S
            or delivery.queue not in self._history.queues
        ):
            return
        request = prepared.change(self.queue(delivery.queue), held.receipt, timeout_s)
        reply = await self.ask(request, f"change {delivery.name} to {timeout_s}")
        is_late = reply.outcome is Outcome.DONE and reply.ended > until
        outcome = Outcome.UNKNOWN if is_late else reply.outcome
        self._history.changes.append(Change(delivery, timeout_s, reply.begun, reply.ended, outcome))
        self.simulation.depends(self._history.changes, reply)

    # -- queues ------------------------------------------------------------------------------------

    async def purge(self, name: str) -> None:
        """Purge, as the gateway does: the catalog knows first, then the shard; then the old queue
        is dropped."""
        while self.simulation.machine.queues.unheard:  # noqa: ASYNC110  see `RaisedIds`
            await asyncio.sleep(0.1)
        purged = self.queue(name)
        begun = self.simulation.time.read()
        successor = self.simulation.machine.queues.purge(purged)
        both = list(zip(purged.all_parts(), successor.all_parts(), strict=True))
        told = [await self.simulation.call(prepared.purge(old, new)) for old, new in both]
        for call in told:
            reply = await call.reply
            self._note(f"purge {name}", reply)
        self._history.removals.append(Removal(name, begun, reply.ended, reply.outcome))
        for old, _ in both:
            await self._drop(old)

    async def _drop(self, purged: QueueDefinition) -> None:
        while True:
            reply = await self.ask(prepared.drop(purged), f"drop {purged.queue_id}")
            if isinstance(reply.answer, Progress) and reply.answer.is_done:
                return
            await asyncio.sleep(0.1)

    async def delete_for_a_while(self, name: str) -> None:
        """Delete a queue, let some of its messages leave, and restore it."""
        known, queue = self.simulation.machine.queues, self.queue(name)
        known.issued = max(known.issued, queue.queue_id)
        del known.queues[queue.queue_id]
        self.simulation.note(f"{name} is deleted")
        step = Progress(is_done=False)
        try:
            for _ in range(self.random.choice((1, 3, 10))):
                operation = MoveDeleted(_EVER_MS, step.next_sequence, step.blocked)
                reply = await self.ask(prepared.prepared(queue, operation), f"move {name}")
                step = reply.answer if isinstance(reply.answer, Progress) else step
                if step.is_done:
                    break
                await asyncio.sleep(self.random.choice((0.0, 0.05, 1.0)))
        finally:
            known.define(queue)
        self.simulation.note(f"{name} is restored")
        while True:
            reply = await self.ask(prepared.prepared(queue, QueueChanged()), f"restored {name}")
            if reply.outcome is Outcome.DONE:
                return
            await asyncio.sleep(_AGAIN_S)

    async def move_all(self, source: str, target: str | None, rate: int = 0) -> None:
        """Start a move task, to each message's own source without a target."""
        destination = None if target is None else self.queue(target)
        if await self.has_task_at_former_home(source):
            return
        await self.ask(
            prepared.start_move_task(self.queue(source), destination, rate), f"move {source}"
        )
        self._history.tasks += 1

    async def has_task_at_former_home(self, source: str) -> bool:
        """True unless all parts that drain have said that no task runs there, as the gateway asks
        before a start."""
        queue = self.queue(source)
        for part in queue.all_parts() if queue.parts else ():
            if not part.part.is_open:
                listing = prepared.prepared(part, ListMessageMoveTasks(queue.arn))
                answer = (await self.ask(listing, f"tasks of {source}")).answer
                if not isinstance(answer, ListMessageMoveTasksResult):
                    return True
                if any(each.status in ("RUNNING", "CANCELLING") for each in answer.results or ()):
                    return True
        return False

    async def hide(self, name: str) -> None:
        """Let shards see no such queue for a while, as if it were deleted and restored."""
        hidden, arn = self.simulation.machine.queues.hidden, self.queue(name).arn
        hidden.add(arn)
        self.simulation.note(f"{name} is gone")
        try:
            await asyncio.sleep(self.random.uniform(0.01, 3))
        finally:
            hidden.discard(arn)
        self.simulation.note(f"{name} is back")

    async def move_selected(self, source: str, target: str) -> None:
        """Move some of the present messages."""
        if await self.has_task_at_former_home(source):
            return
        reply = await self.ask(
            prepared.prepared(self.queue(source), BrowseMessages()), f"browse {source}"
        )
        if isinstance(reply.answer, BrowsedPage) and reply.answer.messages:
            found = [browsed.sequence for browsed in reply.answer.messages]
            chosen = self.random.sample(found, self.random.randint(1, len(found)))
            request = prepared.prepared(self.queue(source), MoveSelected(sequences=chosen))
            request = msgspec.structs.replace(request, destination=self.queue(target))
            await self.ask(request, f"move {len(chosen)} of {source}")
            self._history.tasks += 1


def name_of(body: str) -> str:
    """The message's name in the history."""
    return body.split(":")[0]


def _receipt(sequence: int, delivery: int) -> Receipt:
    return Receipt(sequence, delivery)
