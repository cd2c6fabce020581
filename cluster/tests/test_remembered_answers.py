"""A shard that remembers its answers: retries get them again, and nothing happens twice."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from cluster.shards.answers import NotDecided
from cluster.tests.remembering import (
    FIFO,
    SOURCE,
    STANDARD,
    a_world,
    answer_to,
    named,
    remembered,
    rows,
)
from cluster.tests.virtual_time import virtual
from cluster.tests.world import World, pass_time, settled
from visibility.contract import operations as op
from visibility.contract.errors import InvalidParameterValue, QueueError, ServiceUnavailable
from visibility.contract.model import QueueDefinition, Receipt, Request
from visibility.contract.outcomes import Deliveries, Prepared
from visibility.contract.results import (
    CancelMessageMoveTaskResult,
    DeleteMessageBatchResult,
    SendMessageBatchResult,
    StartMessageMoveTaskResult,
)
from visibility.contract.stored_message import Lease
from visibility.rows.row_codec import decode_row
from visibility.rows.row_keys import LEASE, MESSAGE
from visibility.rules.acknowledge import _all_failures
from visibility.rules.archive_batches import AcknowledgeArchive, SealArchive, the_shard
from visibility.rules.arrivals import AcceptMessages
from visibility.rules.at_most_once import RemoveTaken
from visibility.rules.browse import BrowseMessages
from visibility.rules.closing_parts import CheckPart, FindMessages, PartsAdded
from visibility.rules.dead_letters import MOVES_MAX
from visibility.rules.departures import ClearOutbox, ReadOutbox
from visibility.rules.earlier_parts import (
    FindAttempt,
    FindGroups,
    FindIds,
    ReadLockedGroups,
    UnlockGroups,
)
from visibility.rules.failure_notes import ForgetFailures, NoteFailures, ReadFailureNotes
from visibility.rules.features import OPERATIONS
from visibility.rules.hold_messages import HoldMessages
from visibility.rules.kept_queues import ContinueQueue, DropQueue, RestoreMessages
from visibility.rules.move_plans import PlanMove
from visibility.rules.move_tasks import MoveSelected, ReadMoveTasks
from visibility.rules.noted_parts import NoteParts
from visibility.rules.on_delete import MoveDeleted
from visibility.rules.prepared_deletes import AskPrepared
from visibility.rules.queues import CloseQueue, QueueChanged, ReadCounters, ReadQueues
from visibility.rules.resend import ResendMessage
from visibility.rules.schedules import ChangeSchedule
from visibility.rules.selected import DeleteSelected
from visibility.rules.shared_moves import AdvanceMoveTask, KeepMoveTasks, WorkOnMoveTask
from visibility.rules.transactions import (
    FindTransaction,
    PrepareDeletes,
    TransactedEntry,
    TransactMessages,
)
from visibility.state.short_answers import ShortFailures
from visibility.tests import prepared

REFUSED = InvalidParameterValue("refused by the gateway")
LATER_MS = 1 << 45
NOT_DECIDED = NotDecided()
"""A fault of ours by a class of its own."""


async def received(world: World, queue: QueueDefinition) -> list[Receipt]:
    answer = await answer_to(world, named(prepared.receive(queue, 10)))
    assert isinstance(answer, Deliveries)
    return [Receipt(lease.sequence, lease.receive_count) for lease in answer.leases]


Make = Callable[[list[Receipt], list[Receipt]], Request]
"""A request, from the receipts of three messages of each queue."""


def move_selected(standard: list[Receipt], fifo: list[Receipt]) -> Request:
    return prepared.prepared(STANDARD, MoveSelected([4], rate=1))


def resend(standard: list[Receipt], fifo: list[Receipt]) -> Request:
    request = prepared.prepared(STANDARD, ResendMessage(), [prepared.content("edited")])
    return msgspec.structs.replace(request, destination=SOURCE)


CHANGING: dict[str, Make] = {
    "send": lambda s, f: prepared.send(STANDARD, "x"),
    "delayed send": lambda s, f: prepared.send(STANDARD, "x", delay_s=5),
    "send in order": lambda s, f: prepared.send(FIFO, "x", group="new"),
    "batch": lambda s, f: prepared.send_batch(STANDARD, ["x", REFUSED, "y"], delay_s=5),
    "batch in order": lambda s, f: prepared.send_batch(FIFO, ["x", "f1"], groups=["new", "g"]),
    "delete": lambda s, f: prepared.delete(STANDARD, s[0]),
    "delete in order": lambda s, f: prepared.delete(FIFO, f[0]),
    "delete batch": lambda s, f: prepared.delete_batch(FIFO, [f[0], REFUSED, Receipt(3, 9), f[1]]),
    "hide": lambda s, f: prepared.change(STANDARD, s[0], 100),
    "show in order": lambda s, f: prepared.change(FIFO, f[2], 0),
    "show batch": lambda s, f: prepared.change_batch(FIFO, [f[2], REFUSED, f[2]], [0, 1, 5]),
    "return": lambda s, f: prepared.give_back(STANDARD, s),
    "remove taken": lambda s, f: prepared.prepared(STANDARD, RemoveTaken(), s),
    "start": lambda s, f: prepared.start_move_task(STANDARD, None),
    "move selected": move_selected,
    "resend": resend,
    "hold": lambda s, f: prepared.prepared(STANDARD, HoldMessages([1, 4, 9])),
    "hold in order": lambda s, f: prepared.prepared(FIFO, HoldMessages([1, 4])),
    "cancel": lambda s, f: prepared.prepared(STANDARD, ChangeSchedule([(LATER_MS, 5), (1, 1)])),
    "reschedule": lambda s, f: prepared.prepared(STANDARD, ChangeSchedule([(LATER_MS, 5)], 1)),
    "delete selected": lambda s, f: prepared.prepared(STANDARD, DeleteSelected([1, 4, 9])),
}


@pytest.mark.parametrize("name", CHANGING)
@virtual
async def test_a_retry_gets_the_answer_again_and_changes_nothing(name: str) -> None:
    world = await a_world()
    sent = [prepared.send(STANDARD, f"s{number}") for number in range(3)]
    sent += [prepared.send(FIFO, f"f{number}", group="g") for number in range(3)]
    for each in sent:
        await answer_to(world, named(each))
    standard, fifo = await received(world, STANDARD), await received(world, FIFO)
    await answer_to(world, named(prepared.send(STANDARD, "waits")))
    await answer_to(world, named(prepared.send(STANDARD, "scheduled", at_ms=LATER_MS)))
    request = named(CHANGING[name](standard, fifo))

    first = await answer_to(world, request)
    await pass_time(0.5)
    before = rows(world)
    again = await answer_to(world, request, age_ms=500)

    assert not isinstance(first, QueueError)
    assert again == first
    assert rows(world) == before


@virtual
async def test_a_retried_receive_gets_no_message_that_was_held_meanwhile() -> None:
    world = await a_world()
    await answer_to(world, named(prepared.send(STANDARD, "s")))
    receive = named(prepared.receive(STANDARD, 1, timeout_s=1))
    first = await answer_to(world, receive)
    await pass_time(1.5)
    held = prepared.prepared(STANDARD, HoldMessages([1]))
    await answer_to(world, named(held))

    again = await answer_to(world, receive, age_ms=2_000)

    assert isinstance(first, Deliveries)
    assert isinstance(again, Deliveries)
    assert (len(first.messages), again.messages) == (1, [])


@virtual
async def test_a_retried_receive_gets_no_message_that_a_transaction_may_delete() -> None:
    world = await a_world()
    await answer_to(world, named(prepared.send(STANDARD, "s")))
    receive = named(prepared.receive(STANDARD, 1))
    first = await answer_to(world, receive)
    assert isinstance(first, Deliveries)
    (lease,) = first.leases
    entry = TransactedEntry(STANDARD.queue_id, STANDARD.version)
    prepare = PrepareDeletes([entry], b"t" * 16, b"d" * 16, 1)
    receipt = Receipt(lease.sequence, lease.receive_count)
    done = await answer_to(world, named(prepared.prepared(the_shard(0), prepare, [receipt])))
    assert isinstance(done, Prepared)

    again = await answer_to(world, receive, age_ms=500)

    assert isinstance(again, Deliveries)
    assert again.messages == []


@virtual
async def test_a_batch_blames_the_sender_for_the_senders_faults_only() -> None:
    world = await a_world()
    parts = [ServiceUnavailable(), REFUSED, NOT_DECIDED]
    sends = named(prepared.send_batch(STANDARD, ["x", *parts]))
    await answer_to(world, sends)
    receipts = await received(world, STANDARD)
    deletes = named(prepared.delete_batch(STANDARD, [*parts, *receipts]))
    for request, failures in ((sends, "123"), (deletes, "012")):
        for age_ms in (0, 500):
            answer = await answer_to(world, request, age_ms)

            assert isinstance(answer, SendMessageBatchResult | DeleteMessageBatchResult)
            blamed = {each.id: each.sender_fault for each in answer.failed or ()}
            assert blamed == dict(zip(failures, [False, True, False], strict=True))


def test_a_repeated_refusal_of_the_decision_blames_who_is_at_fault() -> None:
    short = ShortFailures([("0", "ServiceUnavailable", "soon"), ("1", "InvalidParameterValue", "")])

    (failed, refused) = _all_failures(short, prepared.delete_batch(STANDARD, [])).values()

    assert (failed.sender_fault, refused.sender_fault) == (False, True)


@virtual
async def test_a_cancelled_task_tells_the_same_number() -> None:
    world = await a_world()
    for number in range(3):
        await answer_to(world, named(prepared.send(STANDARD, f"s{number}")))
    start = named(prepared.start_move_task(STANDARD, SOURCE, rate=1))
    task = await answer_to(world, start)
    await pass_time(1.5)
    assert isinstance(task, StartMessageMoveTaskResult)
    operation = op.CancelMessageMoveTask(task_handle=task.task_handle)
    request = named(prepared.prepared(STANDARD, operation))

    first = await answer_to(world, request)
    await pass_time(5.0)

    assert isinstance(first, CancelMessageMoveTaskResult)
    assert first.approximate_number_of_messages_moved > 0
    assert await answer_to(world, request, age_ms=5_000) == first


def test_each_operation_is_remembered_or_may_be_decided_twice() -> None:
    repeatable = {
        ReadCounters,
        ReadQueues,
        PlanMove,
        ReadMoveTasks,
        BrowseMessages,
        op.ListMessageMoveTasks,
        ContinueQueue,
        RestoreMessages,
        DropQueue,
        MoveDeleted,
        CloseQueue,
        QueueChanged,
        SealArchive,
        AcknowledgeArchive,
        CheckPart,
        PartsAdded,
        NoteParts,
        FindMessages,
        FindGroups,
        FindIds,
        FindAttempt,
        ReadLockedGroups,
        UnlockGroups,
        AdvanceMoveTask,
        WorkOnMoveTask,
        KeepMoveTasks,
        ReadOutbox,
        AcceptMessages,
        ClearOutbox,
        TransactMessages,
        FindTransaction,
        PrepareDeletes,
        AskPrepared,
        ReadFailureNotes,
        NoteFailures,
        ForgetFailures,
    }

    assert {kind for kind, row in OPERATIONS.items() if row.replay is None} == repeatable


@virtual
async def test_the_services_own_operations_may_be_decided_twice() -> None:
    world = await a_world()
    await answer_to(world, named(prepared.send(STANDARD, "x")))
    successor = world.queues.purge(STANDARD)
    world.queues.purged.clear()  # the catalog would tell the shard itself
    steps = [
        prepared.prepared(STANDARD, QueueChanged()),
        prepared.purge(STANDARD, successor),
        prepared.restore(STANDARD, successor),
        prepared.drop(STANDARD),
        prepared.prepared(SOURCE, CloseQueue()),
        prepared.prepared(the_shard(0), SealArchive()),
        prepared.prepared(the_shard(0), AcknowledgeArchive(source="", batch=0)),
    ]
    for request in steps:
        await answer_to(world, request)
        before = rows(world, MESSAGE)
        again = await answer_to(world, request, age_ms=5)

        assert not isinstance(again, QueueError)
        assert rows(world, MESSAGE) == before
    assert [len(row.request_ids) for row in remembered(world)] == [1]


# -- receives --------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempt", [None, "attempt"])
@pytest.mark.parametrize("queue", [STANDARD, FIFO], ids=lambda queue: queue.name)
@virtual
async def test_a_receive_counts_once_and_keeps_its_full_timeout(
    queue: QueueDefinition, attempt: str | None
) -> None:
    world = await a_world()
    for number in range(3):
        group = "g" if queue is FIFO else None
        await answer_to(world, named(prepared.send(queue, f"m{number}", group=group)))
    request = named(prepared.receive(queue, 2, timeout_s=30, attempt=attempt))

    first = await answer_to(world, request)
    await pass_time(20.0)
    again = await answer_to(world, request, age_ms=20_000)
    third = await answer_to(world, request, age_ms=20_000)
    await pass_time(29.0)

    assert isinstance(first, Deliveries)
    assert isinstance(again, Deliveries)
    assert (again.messages, len(again.messages)) == (first.messages, 2)
    assert [lease.receive_count for lease in again.leases] == [1, 1]
    assert again.leases[0].visible_at_ms == first.leases[0].visible_at_ms + 20_000
    assert third == again
    leases = rows(world, LEASE)
    assert [decode_row(Lease, *row).receive_count for row in leases.items()] == [1, 1]
    if attempt and queue is FIFO:  # the client's own retry still finds them, too
        asked = world.ask(named(request))
        await settled()
        assert asked.bodies == ["m0", "m1"]


@virtual
async def test_messages_whose_lease_ended_count_as_received() -> None:
    """Another receive may have them or not."""
    world = await a_world()
    for number in range(3):
        await answer_to(world, named(prepared.send(STANDARD, f"m{number}")))
    request = named(prepared.receive(STANDARD, 3, timeout_s=5))
    first = await answer_to(world, request)
    assert isinstance(first, Deliveries)
    kept = Receipt(first.leases[1].sequence, 1)
    await answer_to(world, named(prepared.change(STANDARD, kept, 100)))
    await pass_time(6.0)

    other = world.ask(named(prepared.receive(STANDARD, 1)))
    await settled()
    again = world.ask(request, 6_000)
    await settled()
    third = world.ask(named(prepared.receive(STANDARD, 10)))
    await settled()

    assert (other.bodies, again.bodies, third.bodies) == (["m0"], ["m1"], ["m2"])
    (answer,) = other.answers
    assert isinstance(answer, Deliveries)
    assert answer.leases[0].receive_count == 2


@virtual
async def test_a_repeated_receive_hides_for_twelve_hours_from_its_first_try() -> None:
    world = await a_world()
    await answer_to(world, named(prepared.send(STANDARD, "m")))
    request = named(prepared.receive(STANDARD, timeout_s=43_200))
    first = await answer_to(world, request)
    await pass_time(60.0)

    assert await answer_to(world, request, age_ms=60_000) == first


@virtual
async def test_a_receive_that_was_given_back_is_decided_anew() -> None:
    world = await a_world()
    await answer_to(world, named(prepared.send(STANDARD, "m")))
    request = named(prepared.receive(STANDARD))
    receipts = [Receipt(1, 1)]
    assert isinstance(await answer_to(world, request), Deliveries)
    back = prepared.give_back(STANDARD, receipts)
    back = msgspec.structs.replace(back, request_id=request.request_id)
    await answer_to(world, back)

    again = world.ask(request, 10)
    await settled()

    assert again.bodies == ["m"]
    (answer,) = again.answers
    assert isinstance(answer, Deliveries)
    assert answer.leases[0].receive_count == 1


@virtual
async def test_a_receive_that_was_repeated_cannot_be_returned_by_its_first_try() -> None:
    world = await a_world()
    await answer_to(world, named(prepared.send(STANDARD, "m")))
    request = named(prepared.receive(STANDARD))
    back = prepared.give_back(STANDARD, [Receipt(1, 1)])
    back = msgspec.structs.replace(back, request_id=request.request_id)
    asked = [world.ask(request), world.ask(request, 10), world.ask(back), world.ask(request, 20)]
    await settled()
    before = rows(world)
    await answer_to(world, back)

    assert asked[1].bodies == asked[3].bodies == ["m"]
    assert rows(world) == before
    assert [decode_row(Lease, *row).receive_count for row in rows(world, LEASE).items()] == [1]


@virtual
async def test_a_message_of_a_receive_that_cannot_be_read_is_left_out() -> None:
    world = await a_world()
    for number in range(2):
        await answer_to(world, named(prepared.send(STANDARD, f"m{number}")))
    request = named(prepared.receive(STANDARD, 2))
    await answer_to(world, request)
    world.store.damage(min(rows(world, MESSAGE)))

    again = world.ask(request, 10)
    await settled()

    assert again.bodies == ["m1"]


@virtual
async def test_a_poll_that_found_nothing_waits_again_and_reads_nothing_meanwhile() -> None:
    world = await a_world()
    poll = world.ask(named(prepared.receive(STANDARD, wait_s=20)), 1_000)
    await settled()
    assert (poll.answers, poll.ticket.age_ms) == ([], 0)

    await answer_to(world, named(prepared.send(STANDARD, "m")))

    assert poll.bodies == ["m"]


# -- Turns and Entries -----------------------------------------------------------------------------


@virtual
async def test_a_retry_in_the_turn_of_its_first_try() -> None:
    world = await a_world()
    request = named(prepared.send(STANDARD, "m"))

    asked = [world.ask(request), world.ask(request, 10), world.ask(request, 10)]
    await settled()

    assert len({str(each.answers) for each in asked}) == 1
    assert len(rows(world, MESSAGE)) == 1


@virtual
async def test_a_retry_waits_for_a_first_try_that_takes_several_turns() -> None:
    world = await a_world()
    for _ in range(MOVES_MAX // 10 + 1):  # more dead letters than a Turn moves for one receive
        await answer_to(world, named(prepared.send_batch(SOURCE, ["spent"] * 10)))
        await answer_to(world, named(prepared.receive(SOURCE, 10, timeout_s=1)))
    await pass_time(2.0)
    for body in ("first", "second"):
        await answer_to(world, named(prepared.send(SOURCE, body)))
    request = named(prepared.receive(SOURCE, dead_letter_queue=STANDARD))

    asked = [world.ask(request), world.ask(request, 10)]
    await settled()

    assert [each.bodies for each in asked] == [["first"], ["first"]]
    assert len(rows(world, LEASE)) == 1


@virtual
async def test_a_retry_is_not_answered_before_the_entry_of_its_first_try_is_committed() -> None:
    world = await a_world(auto_sync=False, under_way_max=4)
    request = named(prepared.send(STANDARD, "m"))
    first = world.ask(request)
    await settled()

    again = world.ask(request, 10)
    await settled()
    assert (first.answers, again.answers) == ([], [])
    await world.sync()

    assert again.answers == first.answers
    assert len(rows(world, MESSAGE)) == 1
