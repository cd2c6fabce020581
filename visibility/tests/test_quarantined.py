"""Quarantined messages leave the other counts by an event that needs only the state, as in a
follower."""

from __future__ import annotations

from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.row_values import NOWHERE, GroupRow, Quarantined
from visibility.rules.events import Event
from visibility.rules.groups import GroupChange, GroupsChanged
from visibility.rules.message_events import MessagesDelayed, MessagesReceived, MessagesSent
from visibility.rules.quarantine import BlockedGroup, MessagesQuarantined, QuarantineEnded
from visibility.state.queue_state import Blocked, Counts, QueueState
from visibility.state.shard_state import ShardState
from visibility.tests.invariants import check_shard

G = b"g" * 16


def messages(count: int, group: bytes = b"") -> list[StoredMessage]:
    return [StoredMessage(f"id-{n}", 1_000, 10, b"data", group=group) for n in range(count)]


def after(*events: Event) -> QueueState:
    """The queue in a memory without rows."""
    state = ShardState()
    for event in events:
        event.apply(state)
        check_shard(state)
    return state.queue(1)


def test_untouched_messages_leave_the_window_and_the_line() -> None:
    record = Quarantined(0, 3, 5_000, [2], [(4, 6)])

    queue = after(MessagesSent(1, 1, messages(8)), MessagesQuarantined(1, [record], [], []))

    assert [sequence for sequence, _ in queue.window] == [1, 3, 6, 7, 8]
    assert (queue.visible, queue.stored, queue.quarantined.messages) == (5, 5, 3)
    assert queue.counts == Counts(sent=8, sent_bytes=80, quarantined=3)
    assert [n for n in range(1, 9) if n in queue.quarantined] == [2, 4, 5]


def test_a_record_says_what_is_quarantined_instead_of_what_was_before() -> None:
    queue = after(
        MessagesSent(1, 1, messages(8)),
        MessagesQuarantined(1, [Quarantined(0, 1, 5_000, [2])], [], []),
        MessagesQuarantined(1, [Quarantined(0, 2, 6_000, [2, 7])], [], []),
    )

    assert (queue.visible, queue.quarantined.messages) == (6, 2)


def test_a_received_message_that_is_visible_again_leaves_its_place() -> None:
    lease = Lease(1, 900, 1, 0, 900, 900)
    queue = after(
        MessagesSent(1, 1, messages(2)),
        MessagesReceived(1, 1_000, [lease]),
        MessagesQuarantined(1, [Quarantined(0, 1, 5_000, [1])], [lease], []),
    )

    assert (queue.visible, queue.in_flight, queue.quarantined.messages) == (1, 0, 1)
    assert list(queue.visible_again_in_order()) == []


def test_delayed_messages_are_counted_where_no_sequence_is_known() -> None:
    queue = after(
        MessagesDelayed(1, 1, [9_000, 9_000], messages(2)),
        MessagesQuarantined(1, [Quarantined(NOWHERE, 1, 5_000, delayed=[(b"a", b"b")])], [], []),
    )

    assert (queue.delayed, queue.quarantined.messages) == (1, 1)
    assert queue.quarantined.delayed == [(b"a", b"b")]


def test_a_blocked_group_is_counted_as_messages_come_and_go_until_it_ends() -> None:
    lost = Lease(2, 0, 0, 0, 0, 0, G)
    record = Quarantined(0, 1, 5_000, [2])
    blocking = (
        GroupsChanged(1, True, [GroupChange(G, 0, GroupRow(3, 1, 1))]),
        MessagesSent(1, 1, messages(3, G)),
        GroupsChanged(1, True, [GroupChange(G, 1, GroupRow(2, 1, 0))]),
        MessagesQuarantined(1, [record], [lost], [BlockedGroup(G, 5_000)]),
    )
    more = (
        GroupsChanged(1, True, [GroupChange(G, 0, GroupRow(3, 1, 0))]),
        MessagesSent(1, 4, messages(1, G)),
    )
    ended = (
        QuarantineEnded(1, [record], [G]),
        GroupsChanged(1, True, [GroupChange(G, 0, GroupRow(3, 1, 5))]),
    )

    blocked, grown = after(*blocking), after(*blocking, *more)
    over = after(*blocking, *more, *ended)

    assert blocked.quarantined.groups == {G: Blocked(5_000, 2, 0)}
    assert (blocked.visible, blocked.stored, blocked.quarantined.messages) == (0, 2, 3)
    assert (grown.visible, grown.stored, grown.quarantined.messages) == (0, 3, 4)
    assert (over.visible, over.stored, over.quarantined.messages) == (3, 3, 0)
