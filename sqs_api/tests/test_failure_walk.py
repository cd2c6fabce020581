"""A redrive, plan or search of one failure opens only messages that notes say may have it."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Sequence
from random import Random
from typing import Any

import msgspec
import pytest
from typing_extensions import override

from cluster.tests.driver import Driver
from cluster.tests.row_consistency import check_rows
from sqs_api.failures import counted_failures
from sqs_api.failures.counted_failures import Counted, Dead
from visibility.content.content import unpack
from visibility.content.failures import failure_of
from visibility.content.noted_failures import NOTE_VERSION
from visibility.content.sealing import AsStored
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.move_task import MessageFilter, MoveTask
from visibility.contract.outcomes import BrowsedPage, FailureNote, MovePlan, MoveTasks, SpansNoted
from visibility.contract.stored_message import StoredMessage
from visibility.rows.row_keys import FAILURE_NOTE, SPAN_BITS, row_key
from visibility.rules import failure_pages, move_steps
from visibility.rules.browse import BrowseMessages
from visibility.rules.failure_notes import SPANS_MAX, NoteFailures
from visibility.rules.move_plans import PlanMove
from visibility.rules.move_tasks import MoveSelected, ReadMoveTasks
from visibility.rules.selected import DeleteSelected
from visibility.tests import prepared
from visibility.tests.packed import send_packed
from visibility.tests.prepared import KnownQueues

DEAD = prepared.queue_named("dead", 1)
SOURCE = prepared.queue_named("source", 2, dead_letters_to=DEAD)
SPANS, IN_SPAN = 12, 5
KINDS = "AB" + "C" * 8

SHORT = zlib.compress(msgspec.msgpack.encode(([[None]], zlib.compress(b"\0"))))
"""A note with the cells of too few messages."""


def body(kind: str, number: int) -> str:
    return f'{{"n": {number}, "error": {{"type": "{kind}"}}}}'


def failure_id(kind: str) -> str:
    return failure_of(body(kind, 0), None).failure_id


class Opening(AsStored):
    """Counts the messages that are opened, by kind."""

    def __init__(self, opened: Counter[str]) -> None:
        self._opened = opened

    @override
    def opened(self, message: StoredMessage, queues: Sequence[QueueDefinition]) -> bytes | None:
        self._opened[kind_of(message.data)] += 1
        return super().opened(message, queues)


class Dying:
    """A dead-letter queue whose messages are in many spans. Counts the messages that are opened."""

    def __init__(self, seed: int = 0, kinds: str = KINDS) -> None:
        self.opened = Counter[str]()
        self.driver = Driver(KnownQueues(DEAD, SOURCE), sealing=Opening(self.opened))
        self.kinds: dict[int, str] = {}
        random = Random(seed)
        for span in range(SPANS):
            queue = self.driver.state.queue(DEAD.queue_id)
            queue.next_sequence = max(queue.next_sequence, span << SPAN_BITS)
            for number in range(IN_SPAN):
                sequence, kind = queue.next_sequence, random.choice(kinds)
                self.driver.submit(send_packed(DEAD, body(kind, number)))
                self.kinds[sequence] = kind

    def ask(self, operation: Any, **more: Any) -> Any:
        request = Request(operation, DEAD, prepared.CALLER, "r", **more)
        answer = self.driver.submit(request).answer
        check_rows(self.driver.store, self.driver.state)
        return answer

    def note(self, spans: Collection[int], version: int = NOTE_VERSION, data: bytes = b"") -> None:
        """Note these spans, as `sqs_api/failures` does."""
        counted = Counted()
        for sequence, kind in self.kinds.items():
            counted.add(Dead(sequence, failure_of(body(kind, 0), None), "source", 1, 1))
        each = sorted(spans)
        for some in (each[at : at + SPANS_MAX] for at in range(0, len(each), SPANS_MAX)):
            notes = []
            for span in some:
                sequences, content = counted.note(span) or (b"", None)
                packed = data or zlib.compress(msgspec.msgpack.encode(content), 1)
                notes.append(FailureNote(span, version, sequences, 0, packed))
            self.ask(NoteFailures(opens=some))
            noted = self.ask(NoteFailures(notes=notes))
            assert isinstance(noted, SpansNoted)
            assert noted.spans == some

    def redrive(self, kind: str = "A", **more: Any) -> None:
        wanted = MessageFilter(failure=failure_id(kind))
        self.ask(MoveSelected(filter=wanted, **more), destination=SOURCE)

    @property
    def task(self) -> MoveTask:
        answer = self.ask(ReadMoveTasks())
        assert isinstance(answer, MoveTasks)
        return answer.tasks[0]

    def of(self, kind: str) -> int:
        return sum(each == kind for each in self.kinds.values())

    def check_moved(self, kind: str = "A") -> None:
        """All of the kind have moved, and no others; all were looked at."""
        assert self.waiting(SOURCE.queue_id) == Counter({kind: self.of(kind)})
        left = Counter(each for each in self.kinds.values() if each != kind)
        assert self.waiting(DEAD.queue_id) == left
        assert (self.task.status, self.task.moved) == ("COMPLETED", self.of(kind))
        assert self.task.looked_at == len(self.kinds)

    def waiting(self, queue_id: int) -> Counter[str]:
        found = self.driver.rows.line(queue_id, 0, 1 << 40, messages=1000, size=1 << 30)
        return Counter(kind_of(message.data) for _, message in found.messages)


def kind_of(data: bytes) -> str:
    return str(msgspec.json.decode(unpack(data)[1])["error"]["type"])


@pytest.fixture
def dying() -> Dying:
    return Dying()


def test_a_redrive_opens_its_messages_and_no_others(dying: Dying) -> None:
    dying.note(range(SPANS))

    dying.redrive()

    dying.check_moved()
    assert dying.opened == {"A": dying.of("A")}


def test_a_message_that_came_in_the_same_turn_moves_too(dying: Dying) -> None:
    dying.note(range(SPANS))
    wanted = MoveSelected(filter=MessageFilter(failure=failure_id("A")))
    redrive = Request(wanted, DEAD, prepared.CALLER, "r", destination=SOURCE)
    dying.kinds[dying.driver.state.queue(DEAD.queue_id).next_sequence] = "A"

    dying.driver.turn([send_packed(DEAD, body("A", 9)), redrive])

    dying.check_moved()


def test_without_notes_it_opens_all(dying: Dying) -> None:
    dying.redrive()

    dying.check_moved()
    assert dying.opened.total() == len(dying.kinds)


def test_what_a_note_said_is_known_after_a_move_took_it_away() -> None:
    dying = Dying(kinds="ABB")
    dying.note(range(SPANS))

    dying.redrive(rate=1)
    assert dying.task.moved == 1
    dying.driver.pass_time(1000 * len(dying.kinds))

    dying.check_moved()
    assert dying.opened == {"A": dying.of("A")}


def test_a_restart_forgets_that_and_moves_the_same() -> None:
    dying = Dying(kinds="AB")
    dying.note(range(SPANS))
    dying.redrive(rate=1)

    for _ in range(SPANS):
        dying.driver.pass_time(3_000)
        before = dying.driver
        dying.driver = Driver(before.queues, store=before.store, now_ms=before.now_ms, seed=1 << 70)
    dying.driver.pass_time(1000 * len(dying.kinds))

    dying.check_moved()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("cost", [1, 16])
def test_whatever_is_noted_the_same_moves(
    monkeypatch: pytest.MonkeyPatch, seed: int, cost: int
) -> None:
    monkeypatch.setattr(failure_pages, "COST_MAX", cost)
    monkeypatch.setattr(move_steps, "FILTERED_MESSAGES", 1 + seed % 3)
    random = Random(seed)
    dying = Dying(seed, kinds="AABC")
    dying.note(random.sample(range(SPANS), random.randrange(SPANS)))
    for gone in random.sample(sorted(dying.kinds), 4):
        dying.ask(DeleteSelected(sequences=[gone]))
        del dying.kinds[gone]

    plan = plans(dying)
    dying.redrive(rate=seed % 3)
    dying.driver.pass_time(100_000)

    dying.check_moved()
    assert (sum(each[0] for each in plan), sum(each[1] for each in plan)) == (
        dying.of("A"),
        len(dying.kinds) - dying.of("A"),
    )


def plans(dying: Dying) -> list[tuple[int, int]]:
    """(messages that would move, that do not match) of each step of a plan."""
    found: list[tuple[int, int]] = []
    at: int | None = 0
    while at is not None:
        wanted = MessageFilter(failure=failure_id("A"))
        step = dying.ask(PlanMove(from_sequence=at, filter=wanted), destination=SOURCE)
        assert isinstance(step, MovePlan)
        moved = sum(each.messages for each in step.targets.values())
        found.append((moved, step.passed))
        at = step.next_sequence
    return found


def test_a_page_opens_fewer_notes_if_they_tell_many_failures_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Turn is as short as with notes of few."""
    monkeypatch.setattr(failure_pages, "CELLS_AS_ONE", 1)
    monkeypatch.setattr(failure_pages, "COST_MAX", 12)
    steps = []
    for kinds in ("BCDEF", "B"):  # a note has up to five of them, or one
        dying = Dying(kinds=kinds)
        dying.note(range(SPANS))
        plan = plans(dying)
        assert sum(passed for _, passed in plan) == SPANS * IN_SPAN
        steps.append(len(plan))
    assert steps[0] > steps[1]


@pytest.mark.parametrize(
    "note",
    [
        {"version": NOTE_VERSION + 1},
        {"data": b"damaged"},
        {"data": zlib.compress(b"\x91")},
        {"data": SHORT},
    ],
)
def test_a_note_that_cannot_be_used_tells_nothing(dying: Dying, note: dict[str, Any]) -> None:
    dying.note(range(SPANS), **note)

    dying.redrive()

    dying.check_moved()
    assert dying.opened.total() == len(dying.kinds)


def test_a_damaged_note_tells_nothing_and_stops_nothing(dying: Dying) -> None:
    dying.note(range(SPANS))
    store = dying.driver.store
    damaged = [row_key(DEAD.queue_id, FAILURE_NOTE, span) for span in range(SPANS)]
    store.write([each for key in damaged for each in (key, b"\x01" + bytes(4) + b"damaged")])

    wanted = MoveSelected(filter=MessageFilter(failure=failure_id("A")))
    dying.driver.submit(Request(wanted, DEAD, prepared.CALLER, "r", destination=SOURCE))

    assert dying.waiting(SOURCE.queue_id) == {"A": dying.of("A")}
    assert dying.opened.total() == len(dying.kinds)


def test_failures_that_are_not_told_apart_are_all_looked_at(
    dying: Dying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counted_failures, "GROUPS_MAX", 1)
    dying.note(range(SPANS))

    dying.redrive()

    dying.check_moved()
    assert dying.kinds[min(dying.kinds)] == "C", "the one that is told apart"
    assert dying.opened == {kind: dying.of(kind) for kind in "AB"}


def test_a_search_is_shown_them_and_told_of_all(dying: Dying) -> None:
    dying.note(range(0, SPANS, 2))
    found: list[BrowsedPage] = []
    after: tuple[int, int] | None = (0, 0)
    while after is not None:
        wanted = MessageFilter(failure=failure_id("A"))
        found.append(dying.ask(BrowseMessages(after=after, filter=wanted)))
        after = found[-1].next_token

    shown = {each.sequence for page in found for each in page.messages}
    noted = {each for each in dying.kinds if (each >> SPAN_BITS) % 2 == 0}
    of_kind = {each for each, kind in dying.kinds.items() if kind == "A"}
    assert shown == (dying.kinds.keys() - noted) | (noted & of_kind)
    assert sum(page.looked_at for page in found) == len(dying.kinds)
