"""Simulation: the worker lives, crashes and lives again, while clients ask it."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, NamedTuple

from cluster.clock import SystemClock
from cluster.parts.split_receives import SplitReceive
from cluster.tasks import retrieved
from cluster.tests.replication.early_watch import Early
from cluster.tests.simulation.flips import flip_a_bit
from cluster.tests.simulation.known_parts import is_of_all_parts, is_of_counters
from cluster.tests.simulation.simulated_worker import Machine, Worker
from cluster.tests.simulation.time import ShardTime
from compat_tests.faults.fault_history import History, Outcome, Resize
from storage.engines.store import StoreFailed
from storage.tests.simulated_disk import PowerCut
from visibility.contract.errors import InternalError, QueueError, ServiceUnavailable
from visibility.contract.model import QueueCounters, Request
from visibility.contract.outcomes import Answer, Deduplicated
from visibility.state.waiters import OnAnswer, Ticket
from visibility.tests import prepared

_RESTART_S_MAX = 0.5
_STARTS_MAX = 200
_LOOK_S = 0.2


class ConnectionLost(ServiceUnavailable):
    """The worker died before it answered. A gateway that cut the request into several is told what
    a router says of an unknown outcome."""


class Reply(NamedTuple):
    """The outcome of a request, and when it was asked and answered on the shard's clock."""

    answer: Answer | QueueError
    begun: float
    ended: float
    early: Early | None = None
    """None if the answer waited for a majority."""

    @property
    def outcome(self) -> Outcome:
        """The outcome as far as the client knows it."""
        if isinstance(self.answer, ServiceUnavailable | InternalError):
            return Outcome.UNKNOWN
        return Outcome.REFUSED if isinstance(self.answer, QueueError) else Outcome.DONE


class Call:
    """A request under way."""

    def __init__(self, begun: float) -> None:
        self.begun = begun
        self.is_offered = False
        """True if another part may get it: it is not held while nobody decides it."""
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.ticket: Ticket | None = None
        self.early: Early | None = None


class Simulation:
    """One seed."""

    unlocks_groups = True
    """False if nobody asks for the locked groups of FIFO queues, which then stay whole."""
    has_manager = False
    """True if the manager splits FIFO queues, too."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.history = History()
        self.time = ShardTime()
        self.worker: Worker | None = None
        self.lives = 0
        self.lines: list[str] = []
        """All that happened, for the digest."""
        self.answers_until_crash: int | None = None
        self.is_power_loss = True
        """True if the next crash is a loss of power, else a kill -9."""
        self.early: list[tuple[list[Any], object, Early]] = []
        """Parts of the history that depend on early answers, each with its list."""
        self._ids = 0
        self._calls: dict[int, Call] = {}
        self._counting: set[asyncio.Task[QueueCounters]] = set()
        self._up = asyncio.Event()
        self._crashed = asyncio.Event()
        self._random = Random(machine.random.getrandbits(64))
        machine.disk.on_cut = self._cut
        machine.queues.changed = self._resized
        machine.given_back = self._given_back

    def new_id(self) -> str:
        """A request id; as long as the one that all others share."""
        self._ids += 1
        return f"r{self._ids:06}"

    def note(self, text: str) -> None:
        """Write a line of the history."""
        self.lines.append(f"{asyncio.get_running_loop().time():.6f} {text}")

    def depends(self, records: list[Any], reply: Reply) -> None:
        """The latest of these records of the history depends on the reply."""
        if reply.early is not None:
            self.early.append((records, records[-1], reply.early))

    def _given_back(self, request: Request) -> None:
        """A receive that was answered late is empty; if this fails too, it still counts."""
        self.history.unknown_receives[request.queue.name] += 1

    def _resized(self, queue: str) -> None:
        """The parts of a queue change."""
        resizes = self.history.resizes.setdefault(queue, [])
        if not resizes or resizes[-1].ended < float("inf"):
            resizes.append(Resize(self.time.read()))

    # -- life and death ----------------------------------------------------------------------------

    async def supervise(self) -> None:
        """Start the worker, and again after each crash."""
        while True:
            await self._start()
            await self._crashed.wait()
            await asyncio.sleep(self._random.uniform(0, _RESTART_S_MAX))

    async def _start(self) -> None:
        disk = self.machine.disk
        for _ in range(_STARTS_MAX):
            self._crashed.clear()
            worker = Worker(self.machine)
            self.lives += 1
            self.worker = worker
            try:
                await worker.start()
            except PowerCut:
                await asyncio.sleep(0.001)
                continue
            except StoreFailed as error:
                self.note(f"start failed: {error}")
                self.crash(is_power_loss=False)
                disk.is_full = False
                disk.failing_syncs = disk.short_writes = 0
                continue
            if not worker.is_over:
                worker.check()
                self.note("up")
                self._follow(worker.clock)
                self.history.starts.append(self.time.read())
                self._up.set()
                return
        raise AssertionError("the worker does not start")

    def _follow(self, clock: SystemClock) -> None:
        """The shard's time is this clock's from now on."""
        back_s = self.time.follow(clock)
        if back_s:
            self.history.set_back.append((self.time.read(), back_s))

    def _cut(self) -> None:
        self.crash(is_power_loss=True)

    def crash(self, *, is_power_loss: bool) -> None:
        """End the worker now; the next start sees the disk's losses."""
        worker = self.worker
        if worker is None or worker.is_over:
            return
        self.note("power loss" if is_power_loss else "kill -9")
        self._end_life()
        worker.end()
        disk = self.machine.disk
        if is_power_loss:
            disk.crash()
        else:
            disk.kill()
        machine = self.machine
        if machine.flips and not machine.has_loss and flip_a_bit(machine, self._random):
            self.note("a bit flipped")

    def _end_life(self) -> None:
        self.time.end()
        self.answers_until_crash = None
        self._up.clear()
        self._crashed.set()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            self._answer(call, ConnectionLost())

    async def stop_cleanly(self) -> None:
        """Stop the worker as an operator does; `supervise` starts the next one."""
        worker = self.worker
        if worker is None or worker.is_over or not worker.router.ready:
            return
        self.note("stop")
        self._up.clear()
        stopping = asyncio.create_task(worker.stop())
        stopping.add_done_callback(retrieved)  # the wait may be cancelled
        crashed = asyncio.create_task(self._crashed.wait())
        await asyncio.wait([stopping, crashed], return_when=asyncio.FIRST_COMPLETED)
        if not self._crashed.is_set():
            if not isinstance(stopping.exception(), StoreFailed | PowerCut | None):
                stopping.result()
            self.machine.disk.kill()
            self._end_life()
        for task in (stopping, crashed):
            task.cancel()
        await asyncio.gather(stopping, crashed, return_exceptions=True)

    @property
    def is_moving(self) -> bool:
        """True while a move task runs, or a message is on its way between shards."""
        return self.worker is not None and self.worker.is_moving

    # -- requests ----------------------------------------------------------------------------------

    async def connected(self) -> None:
        """Wait until the worker takes connections."""
        while not self._up.is_set():
            await self._up.wait()

    async def call(self, request: Request) -> Call:
        """Send a request, once the worker takes connections."""
        await self.connected()
        worker = self.worker
        assert worker is not None
        call = Call(self.time.read())
        self._calls[id(call)] = call

        def on_answer(answer: Answer | QueueError) -> None:
            if worker.is_over or self._calls.pop(id(call), None) is None:
                return
            self._answer(call, answer)
            self._count_answer()

        if is_of_all_parts(request):
            call.ticket = worker.split.submit(request, on_answer)
        elif is_of_counters(request):
            self._count_parts(worker, request, on_answer)
        else:
            call.ticket = worker.router.submit(request, on_answer)
        return call

    def _count_parts(self, worker: Worker, request: Request, on_answer: OnAnswer) -> None:
        asking = asyncio.create_task(worker.split.counters(request))
        self._counting.add(asking)

        def done(task: asyncio.Task[QueueCounters]) -> None:
            self._counting.discard(task)
            if not task.cancelled():
                refusal = task.exception()
                assert isinstance(refusal, QueueError | None)
                on_answer(refusal or task.result())

        asking.add_done_callback(done)

    async def ask(self, request: Request) -> Reply:
        """Send a request and wait for its outcome."""
        return await (await self.call(request)).reply

    async def undone(self, receive: Request, begun_s: float) -> bool:
        """Wait until a receive that was answered 503 at this time of the loop has no effect; False
        if that is unknown."""
        life = self.lives
        while self.lives == life:
            if (await self.ask(prepared.counters(receive.queue))).outcome is Outcome.DONE:
                return self.lives == life  # what the shard gave back came before
            await asyncio.sleep(_LOOK_S)
        return False

    def hang_up(self, call: Call) -> bool:
        """Close the connection of a long poll; False if it was answered, or will be."""
        worker = self.worker
        if call.reply.done() or worker is None or worker.is_over or call.ticket is None:
            return False
        is_split = isinstance(call.ticket, SplitReceive)
        cancel = worker.split.cancel if is_split else worker.router.cancel
        if cancel(call.ticket):
            del self._calls[id(call)]
            return True
        return False

    def _answer(self, call: Call, answer: Answer | QueueError) -> None:
        if isinstance(answer, Deduplicated):
            answer = answer.result
        if isinstance(answer, InternalError):
            self.machine.violations.append("a request was answered InternalError")
        if not call.reply.done():
            call.reply.set_result(Reply(answer, call.begun, self.time.read(), call.early))

    def _count_answer(self) -> None:
        if self.answers_until_crash is not None:
            self.answers_until_crash -= 1
            if self.answers_until_crash <= 0:
                self.crash(is_power_loss=self.is_power_loss)
