"""In a cluster a message that needs a key which is not here yet is refused, to be tried again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import pytest

from auth.envelope import BUILT_IN_KEY
from cluster.coordination.coordination import Transaction
from cluster.tests.coordinations import until
from cluster.tests.stores import Late, late_hosts
from cluster.tests.virtual_time import SettableClock
from sqs_api.gateway.sealer import Sealer
from sqs_api.tests.sealed_world import BILLS, BODY, MANAGED, queue_of, sealed
from visibility.contract.errors import KmsDisabled, KmsNotFound, ServiceUnavailable
from visibility.contract.model import Content, QueueDefinition
from visibility.contract.stored_message import StoredMessage
from visibility.tests.prepared import ACCOUNT

T = TypeVar("T")
BUILT_IN, KEYED = queue_of("managed", 1, MANAGED), queue_of("keyed", 2, BILLS)


class Sealers:
    """The sealers of two hosts; the second hears late of records."""

    def __init__(self, late: Late, *, makes_keys: bool = False) -> None:
        self.late = late
        self.clock = SettableClock()
        self.one = Sealer(late.one, self.clock, makes_keys=makes_keys)
        self.other = Sealer(late.other, self.clock, makes_keys=makes_keys)


@pytest.fixture
async def sealers() -> AsyncIterator[Sealers]:
    async with late_hosts() as late:
        yield Sealers(late)


def seal(sealer: Sealer, queue: QueueDefinition) -> StoredMessage:
    content = sealed(sealer, Content(BODY, len(BODY), "md5"), queue)
    return StoredMessage("id", 0, content.size, content.data, content.sealed)


async def retried(attempt: Callable[[], T]) -> T:
    """As a client does it."""
    async with asyncio.timeout(30):
        while True:
            try:
                return attempt()
            except ServiceUnavailable:
                await asyncio.sleep(0.001)


async def test_the_first_message_under_a_key_is_sealed_when_its_data_key_is_made(
    sealers: Sealers,
) -> None:
    with pytest.raises(ServiceUnavailable):
        seal(sealers.one, BUILT_IN)

    message = await retried(lambda: seal(sealers.one, BUILT_IN))

    assert sealers.one.open(message) == BODY
    assert seal(sealers.one, BUILT_IN).sealed == message.sealed, "one data key was made"


async def test_keys_of_queues_that_are_there_at_start_wait_for_no_message(sealers: Sealers) -> None:
    await sealers.late.one.add("bills", ACCOUNT)
    await sealers.one.prepare([BUILT_IN, KEYED])

    messages = [seal(sealers.one, queue) for queue in (BUILT_IN, KEYED)]

    assert [sealers.one.open(message) for message in messages] == [BODY] * 2


async def test_a_message_of_another_host_is_opened_as_soon_as_its_key_is_here(
    sealers: Sealers,
) -> None:
    await sealers.late.one.add("bills", ACCOUNT)
    await sealers.one.prepare([BUILT_IN, KEYED])
    message, keyed = (seal(sealers.one, queue) for queue in (BUILT_IN, KEYED))

    with pytest.raises(ServiceUnavailable):
        sealers.other.open(message)

    assert await retried(lambda: sealers.other.open(message)) == BODY
    assert sealers.other.open(keyed) == BODY, "one read brought all"
    assert sealers.other.broken == 0


async def test_receiving_makes_no_data_key_and_refuses_as_ever(sealers: Sealers) -> None:
    with pytest.raises(KmsNotFound):
        sealers.one.check(KEYED)
    await sealers.late.one.add("bills", ACCOUNT)

    sealers.one.check(KEYED)
    sealers.one.check(BUILT_IN)

    assert "ids/block" not in sealers.late.coordination.records
    await sealers.late.one.set_enabled("bills", False)
    with pytest.raises(KmsDisabled):
        sealers.one.check(KEYED)


async def test_an_unknown_key_is_made_in_open_mode(sealers: Sealers) -> None:
    generous = Sealer(sealers.late.one, sealers.clock, makes_keys=True)

    message = await retried(lambda: seal(generous, KEYED))

    assert generous.open(message) == BODY
    assert [key.name for key in sealers.late.one.names()] == [BUILT_IN_KEY, "bills"]


async def test_without_etcd_messages_are_sealed_on_under_the_present_key(sealers: Sealers) -> None:
    await sealers.one.prepare([BUILT_IN])
    message = seal(sealers.one, BUILT_IN)
    sealers.late.coordination.is_away = True
    sealers.clock.at_ms += 25 * 3600 * 1000

    await sealers.one.renew([BUILT_IN])

    later = seal(sealers.one, BUILT_IN)
    assert later.sealed == message.sealed + 1, "the next of its block"
    assert sealers.one.open(message) == sealers.one.open(later) == BODY
    with pytest.raises(ServiceUnavailable):
        seal(sealers.other, BUILT_IN)


async def test_a_message_under_the_wanted_key_stays_as_it_is(sealers: Sealers) -> None:
    await sealers.late.one.add("bills", ACCOUNT)
    sealers.late.report()
    await sealers.one.prepare([KEYED])
    message = seal(sealers.one, KEYED)
    before = set(sealers.late.coordination.records)

    moved = await retried(lambda: sealers.other.sealed_for(message, KEYED))

    assert moved is message
    assert not sealers.other.is_making
    assert set(sealers.late.coordination.records) == before, "it takes no data keys for it"


async def test_a_message_that_moves_is_sealed_when_its_data_key_is_made(sealers: Sealers) -> None:
    bare = StoredMessage("id", 0, len(BODY), BODY, 0)
    with pytest.raises(ServiceUnavailable):
        sealers.one.sealed_for(bare, BUILT_IN)

    moved = await retried(lambda: sealers.one.sealed_for(bare, BUILT_IN))

    assert moved.sealed
    assert sealers.one.open(moved) == BODY


async def test_a_message_is_compared_with_a_filter_as_soon_as_its_key_is_here(
    sealers: Sealers,
) -> None:
    await sealers.one.prepare([BUILT_IN])
    message = seal(sealers.one, BUILT_IN)

    with pytest.raises(ServiceUnavailable):
        sealers.other.opened(message, [BUILT_IN])

    assert await retried(lambda: sealers.other.opened(message, [BUILT_IN])) == BODY


async def test_data_keys_for_queues_that_are_new_are_made_before_messages_need_them(
    sealers: Sealers,
) -> None:
    await sealers.one.prepare([BUILT_IN])
    await sealers.late.one.add("bills", ACCOUNT)

    await sealers.one.renew([BUILT_IN, KEYED])

    assert sealers.one.open(seal(sealers.one, KEYED)) == BODY
    before = [seal(sealers.one, queue).sealed for queue in (BUILT_IN, KEYED)]
    await sealers.one.renew([BUILT_IN, KEYED])
    assert [seal(sealers.one, queue).sealed for queue in (BUILT_IN, KEYED)] == before


async def test_a_key_that_cannot_be_made_is_tried_again_after_a_second(sealers: Sealers) -> None:
    sealers.late.coordination.is_away = True
    for _ in range(3):
        with pytest.raises(ServiceUnavailable):
            seal(sealers.one, BUILT_IN)
        await sealers.one.made()
    sealers.late.coordination.is_away = False

    with pytest.raises(ServiceUnavailable):
        seal(sealers.one, BUILT_IN)
    assert not sealers.one.is_making, "not yet"
    sealers.clock.at_ms += 1_000

    assert sealers.one.open(await retried(lambda: seal(sealers.one, BUILT_IN))) == BODY


async def test_after_a_restore_of_etcd_messages_are_sealed_under_keys_that_others_have(
    sealers: Sealers,
) -> None:
    before = await retried(lambda: seal(sealers.one, BUILT_IN))
    coordination = sealers.late.coordination
    lost = {key: None for key in coordination.records if key.startswith("data/")}
    coordination.change(Transaction({}, {**lost, "ids/block": None}))
    coordination.is_away = True

    with pytest.raises(ServiceUnavailable):
        seal(sealers.one, BUILT_IN)

    coordination.is_away = False
    after = await retried(lambda: seal(sealers.one, BUILT_IN))
    assert after.sealed != before.sealed
    await until(lambda: set(lost) <= coordination.records.keys())
    sealers.late.report()
    assert [sealers.other.open(each) for each in (before, after)] == [BODY] * 2
