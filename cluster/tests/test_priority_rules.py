"""Priority, weighted and strict: returned messages, groups, changed tags, a restart."""

from __future__ import annotations

from collections import Counter

import pytest

from cluster.tests.driver import Driver
from storage.tests.memory_store import CountingStore
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.model import Receipt
from visibility.rows.row_keys import LEVEL_LINE, message_key
from visibility.tests import prepared
from visibility.tests.invariants import check_shard
from visibility.tests.prepared import KnownQueues

WEIGHTED = {"holdfast:priority": "weighted"}
STRICT = {"holdfast:priority": "strict"}


class Ranked:
    """A queue with these tags, and its dead-letter queue if it has one."""

    def __init__(self, tags: dict[str, str]) -> None:

        self.queue = prepared.queue_named("q", 1, tags=tags)
        self.store = CountingStore()
        self.driver = Driver(KnownQueues(self.queue), store=self.store)

    def send(self, *messages: tuple[str, int | None], group: str | None = None) -> None:
        """Send (body, priority) each; None for one without the attribute."""
        for body, priority in messages:
            level = 0 if priority is None else priority + 1
            request = prepared.send(self.queue, body, group=group, level=level)
            assert self.driver.submit(request).refusal is None
        check_shard(self.driver.state)

    def taken(self, most: int = 10) -> dict[str, Receipt]:
        """The bodies that a receive gets, in order, with their receipts."""
        taken = self.driver.submit(prepared.receive(self.queue, most)).taken
        check_shard(self.driver.state)
        return taken

    def all_taken(self, most: int = 10) -> list[str]:
        """The bodies that receives get until one is empty."""
        bodies: list[str] = []
        while taken := self.taken(most):
            bodies += taken
        return bodies

    def give_back(self, *receipts: Receipt) -> None:
        """End visibility timeouts."""
        for receipt in receipts:
            self.driver.submit(prepared.change(self.queue, receipt, 0))
        check_shard(self.driver.state)

    def retag(self, tags: dict[str, str]) -> None:
        """Change the queue's tags."""
        changed = prepared.queue_named("q", 1, tags=tags)
        self.queue = self.driver.queues.define(changed)

    def restart(self) -> None:
        """Load the shard from its rows."""
        now_ms = self.driver.now_ms
        self.driver = Driver(self.driver.queues, store=self.store, now_ms=now_ms)

    @property
    def index_rows(self) -> int:
        """Rows of the index of levels on disk."""
        return sum(key[8:9] == LEVEL_LINE for key in self.store.rows)


# -- strict ----------------------------------------------------------------------------------------


def test_strict_gives_the_highest_first_and_the_oldest_of_each() -> None:
    ranked = Ranked(STRICT)
    ranked.send(("a", 0), ("b", 9), ("c", None), ("d", 4), ("e", 9), ("f", 5))

    assert list(ranked.taken(1)) == ["b"]
    assert list(ranked.taken()) == ["e", "f", "c", "d", "a"]
    assert ranked.index_rows == 0


def test_a_returned_message_keeps_its_priority() -> None:
    ranked = Ranked(STRICT)
    ranked.send(("low", 1), ("first", 7), ("second", 7), ("high", 8))
    taken = ranked.taken(2)
    ranked.give_back(*taken.values())

    assert list(ranked.taken()) == ["high", "first", "second", "low"]


def test_strict_puts_what_was_received_three_times_behind_all_levels() -> None:
    ranked = Ranked(STRICT)
    ranked.send(("poison", 9))
    for _ in range(3):
        ranked.give_back(ranked.taken(1)["poison"])
    ranked.send(("low", 0), ("high", 9))

    assert ranked.all_taken(1) == ["high", "low", "poison"]
    assert ranked.index_rows == 0


# -- weighted --------------------------------------------------------------------------------------


def test_weighted_gives_each_level_one_share_more_than_its_number() -> None:
    ranked = Ranked(WEIGHTED)
    for priority in range(10):
        ranked.send(*[(f"{priority} {n}", priority) for n in range(40)])

    first = Counter(body[0] for _ in range(11) for body in ranked.taken(5))

    assert first == {str(priority): priority + 1 for priority in range(10)}


def test_a_level_that_was_empty_has_no_shares_left_over() -> None:
    ranked = Ranked(WEIGHTED)
    ranked.send(*[(f"low {n}", 0) for n in range(30)])
    for _ in range(20):
        ranked.taken(1)
    ranked.send(*[(f"high {n}", 1) for n in range(30)])

    taken = [body for _ in range(9) for body in ranked.taken(1)]

    assert 2 <= sum(body.startswith("low") for body in taken) <= 4


def test_the_poison_rule_stays_within_a_level() -> None:
    ranked = Ranked(WEIGHTED)
    ranked.send(("poison", 9), ("next", 9))
    for _ in range(3):
        ranked.give_back(ranked.taken(1)["poison"])
    ranked.send(("low", 0))

    assert ranked.all_taken(1) == ["low", "next", "poison"]


# -- many messages ---------------------------------------------------------------------------------


@pytest.mark.parametrize("tags", [STRICT, WEIGHTED], ids=["strict", "weighted"])
def test_a_high_message_is_found_behind_many_low_ones(tags: dict[str, str]) -> None:
    ranked = Ranked(tags)
    ranked.send(*[(f"low {n}", 1) for n in range(600)])
    ranked.restart()
    ranked.send(("high", 9))
    ranked.restart()

    reads = ranked.store.reads
    assert list(ranked.taken(1)) == ["high"]
    assert ranked.store.reads - reads < 1_200, "a page of each level"
    assert ranked.all_taken() == [f"low {n}" for n in range(600)]


def test_a_restart_keeps_levels_and_what_was_received_of_them() -> None:
    ranked = Ranked(STRICT)
    ranked.send(*[(f"{n}", n % 10) for n in range(40)])
    taken = ranked.taken(4)
    ranked.give_back(taken["9"])

    ranked.restart()

    check_shard(ranked.driver.state)
    rest = ranked.all_taken()
    assert rest[0] == "9"
    assert [int(body) % 10 for body in rest] == sorted((int(b) % 10 for b in rest), reverse=True)
    assert len(rest) == 37


# -- changed tags ----------------------------------------------------------------------------------


@pytest.mark.parametrize("tags", [STRICT, WEIGHTED])
def test_the_last_tenth_of_the_slots_is_for_the_highest_priority(tags: dict[str, str]) -> None:
    ranked = Ranked(tags | {"holdfast:max-in-flight": "100"})
    ranked.send(*((f"low {number}", 2) for number in range(100)))
    low = [name for _ in range(10) for name in ranked.taken()]
    assert len(low) == 90

    poll = ranked.driver.submit(prepared.receive(ranked.queue, wait_s=20))
    ranked.send(("high", 9))
    assert [each.data for each in poll.deliveries.messages] == [b"high"]
    assert ranked.taken() == {}
    ranked.send(*((f"high {number}", 9) for number in range(20)))
    assert list(ranked.taken()) == [f"high {number}" for number in range(9)]
    assert ranked.taken() == {}


def test_few_slots_are_for_all_priorities() -> None:
    ranked = Ranked(STRICT | {"holdfast:max-in-flight": "99"})
    ranked.send(*((f"low {number}", 2) for number in range(100)))

    assert len([name for _ in range(10) for name in ranked.taken()]) == 99
    ranked.send(("high", 9))
    assert ranked.taken() == {}


def test_a_returned_message_of_the_highest_priority_uses_the_slots_for_it() -> None:
    ranked = Ranked(STRICT | {"holdfast:max-in-flight": "100"})
    ranked.send(("high", 9))
    high = ranked.taken()["high"]
    ranked.send(*((f"low {number}", 2) for number in range(100)))
    for _ in range(9):
        ranked.taken()
    ranked.give_back(high)
    assert list(ranked.taken(1)) == ["high"]
    low = list(ranked.taken())
    ranked.restart()

    assert (low, ranked.taken()) == ([], {})


def test_what_waits_for_its_retry_keeps_no_lower_one_waiting() -> None:
    ranked = Ranked(STRICT | {"holdfast:retry-min": "10", "holdfast:retry-max": "10"})
    ranked.send(("high", 9), ("low", 1), ("lower", 0))
    ranked.give_back(ranked.taken(1)["high"])

    assert list(ranked.taken(1)) == ["low"]
    ranked.driver.pass_time(10_000)
    assert list(ranked.taken()) == ["high", "lower"]


def test_messages_from_before_the_tag_have_the_default_priority() -> None:
    ranked = Ranked({})
    ranked.send(("old", None), ("old too", None))
    ranked.retag(STRICT)
    ranked.send(("low", 3), ("default", None), ("high", 5))

    assert ranked.all_taken() == ["high", "old", "old too", "default", "low"]


def test_without_the_tag_the_oldest_goes_first_again() -> None:
    ranked = Ranked(STRICT)
    ranked.send(("a", 1), ("b", 9), ("c", 5))
    ranked.give_back(ranked.taken(1)["b"])
    ranked.retag({})
    ranked.send(("d", None))

    assert ranked.taken(1).keys() == {"a"}
    ranked.retag(STRICT)
    assert ranked.all_taken(1) == ["b", "c", "d"]
    assert ranked.index_rows == 0


# -- fair queues -----------------------------------------------------------------------------------


def make_noisy(ranked: Ranked) -> None:
    """Let one tenant have so many messages in flight that it is noisy, and more waiting."""
    ranked.send(*[(f"noisy {n}", 9) for n in range(150)], group="noisy")
    for _ in range(4):
        ranked.taken()


def test_quiet_tenants_come_before_noisy_ones_of_a_higher_priority() -> None:
    ranked = Ranked(STRICT)
    make_noisy(ranked)
    for tenant in range(70):
        ranked.send((f"quiet {tenant}", 1 if tenant < 69 else 8), group=str(tenant))
    ranked.send(("nobody's", 3))

    taken = ranked.all_taken()

    assert taken[:3] == ["quiet 69", "nobody's", "quiet 0"]
    assert taken[3:71] == [f"quiet {tenant}" for tenant in range(1, 69)]
    assert taken[71:] == [f"noisy {n}" for n in range(40, 150)]


def test_a_noisy_tenant_stays_so_while_it_sends() -> None:
    ranked = Ranked({})
    ranked.send(*[(f"noisy {n}", 9) for n in range(150)], group="noisy")
    for _ in range(4):
        ranked.driver.submit(prepared.receive(ranked.queue, 10, timeout_s=3600))
    ranked.driver.pass_time(200_000)
    ranked.send(("more", 9), group="noisy")
    ranked.driver.pass_time(200_000)
    ranked.send(("quiet", 0), group="quiet")

    assert list(ranked.taken(1)) == ["quiet"]


@pytest.mark.parametrize("tags", [STRICT, {}])
def test_a_dead_letter_has_its_own_priority_again(tags: dict[str, str]) -> None:
    """Not the one behind all that it had for its many receives; a queue without the tag keeps
    that for a redrive."""
    dead = prepared.queue_named("dead", 2, tags=tags)
    queue = prepared.queue_named("q", 1, tags=STRICT, dead_letters_to=dead, max_receive_count=4)
    driver = Driver(KnownQueues(queue, dead))
    driver.submit(prepared.send(queue, "poison", level=10))
    driver.submit(prepared.send(dead, "low", level=6))
    for _ in range(5):
        taken = driver.submit(prepared.receive(queue, 1, dead_letter_queue=dead)).taken
        for receipt in taken.values():
            driver.submit(prepared.change(queue, receipt, 0))

    found = driver.submit(prepared.receive(dead, 10)).deliveries.messages
    levels = {message.data: message.level for message in found}

    assert list(levels) == ([b"poison", b"low"] if tags else [b"low", b"poison"])
    assert levels[b"poison"] == (10 if tags else 20)


# -- other ways into the line ----------------------------------------------------------------------


def test_a_delayed_message_joins_its_level() -> None:
    ranked = Ranked(STRICT)
    request = prepared.send(ranked.queue, "delayed", delay_s=5, level=10)
    ranked.driver.submit(request)
    ranked.send(("low", 0))
    ranked.driver.pass_time(6_000)

    assert ranked.all_taken(1) == ["delayed", "low"]


# -- damage ----------------------------------------------------------------------------------------


def test_without_a_row_of_the_index_the_oldest_goes_first() -> None:
    ranked = Ranked(STRICT)
    ranked.send(("a", 1), ("b", 9), ("c", 9))
    key = next(key for key in ranked.store.rows if key[8:9] == LEVEL_LINE)
    del ranked.store.rows[key]
    ranked.restart()

    reply = ranked.driver.submit(prepared.receive(ranked.queue, 10))

    assert isinstance(reply.refusal, ServiceUnavailable), "this one is asked again"
    assert ranked.all_taken(1) == ["a", "b", "c"]


def test_a_lost_message_keeps_no_other_waiting() -> None:
    ranked = Ranked(STRICT)
    ranked.send(("a", 1), ("b", 9), ("c", 9))
    del ranked.store.rows[message_key(1, 2)]
    ranked.restart()

    assert ranked.all_taken(1) == ["c", "a"]
    assert ranked.driver.state.queue(1).quarantined.messages == 1
    assert ranked.index_rows == 0
