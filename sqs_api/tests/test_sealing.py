"""Messages are sealed as their queue requires; keys can be disabled and replaced."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from auth.envelope import BUILT_IN_KEY
from cluster.tests.virtual_time import SettableClock
from sqs_api.gateway.sealer import Sealer
from sqs_api.tests.sealed_world import memory_keyring, now, sealed
from sqs_api.tests.serving import ACCOUNT, Service, json_request, running
from visibility.contract.attributes import initial_attributes, settings_of
from visibility.contract.errors import KmsDisabled, KmsNotFound, ServiceUnavailable
from visibility.contract.model import Content, QueueDefinition
from visibility.contract.stored_message import StoredMessage

BODY = b"a body that nobody may read"


class Sealing:
    """A sealer with a settable clock."""

    def __init__(self, *, makes_keys: bool = False) -> None:
        self.clock = SettableClock()
        self.keyring = memory_keyring(self.clock)
        self.sealer = Sealer(self.keyring, self.clock, makes_keys=makes_keys)

    def seal(self, queue: QueueDefinition) -> StoredMessage:
        """Once its data key is made."""
        now(self.sealer.prepare([queue]))
        stored = sealed(self.sealer, Content(BODY, len(BODY), "md5"), queue)
        return StoredMessage("id", 0, stored.size, stored.data, stored.sealed)


@pytest.fixture
def sealing() -> Any:
    return Sealing()


def queue_with(**given: str) -> QueueDefinition:
    attributes = initial_attributes("q", given)
    settings = settings_of(attributes)
    return QueueDefinition(
        1, "0" * 12, "us-east-1", "q", 1, 0, 0, 0, bytes(32), attributes, {}, settings
    )


MANAGED = queue_with()
PLAIN = queue_with(SqsManagedSseEnabled="false")
KEYED = queue_with(KmsMasterKeyId="alias/orders", KmsDataKeyReusePeriodSeconds="60")


def test_a_queue_without_encryption_stores_what_was_sent(sealing: Sealing) -> None:
    message = sealing.seal(PLAIN)

    assert (message.data, message.sealed) == (BODY, 0)
    assert sealing.sealer.open(message) == BODY


def test_a_managed_queue_seals_and_opens(sealing: Sealing) -> None:
    message = sealing.seal(MANAGED)

    assert BODY not in message.data
    assert sealing.keyring.data_key(message.sealed)[0].name == BUILT_IN_KEY
    assert sealing.sealer.open(message) == BODY


def test_a_seal_does_not_name_the_place_of_its_message(sealing: Sealing) -> None:
    now(sealing.keyring.add("orders", ACCOUNT))
    moved = msgspec.structs.replace(sealing.seal(KEYED), sent_at_ms=9, dead_letter_source_arn="x")

    assert sealing.sealer.open(moved) == BODY


def test_an_unknown_key_is_refused(sealing: Sealing) -> None:
    with pytest.raises(KmsNotFound):
        sealing.seal(KEYED)
    with pytest.raises(KmsNotFound):
        sealing.sealer.check(KEYED)


async def test_an_unknown_key_is_made_in_open_mode() -> None:
    generous = Sealing(makes_keys=True)
    with pytest.raises(ServiceUnavailable):
        generous.seal(KEYED)
    assert generous.sealer.is_making
    await generous.sealer.made()

    assert generous.sealer.open(generous.seal(KEYED)) == BODY
    assert [key.name for key in generous.keyring.names()] == [BUILT_IN_KEY, "orders"]


@pytest.mark.parametrize("reference", ["arn:aws:kms:us-east-1:0:key/abc", "alias/key/abc", "abc"])
async def test_a_key_that_was_made_is_found_after_a_restart(reference: str) -> None:
    queue, generous = queue_with(KmsMasterKeyId=reference), Sealing(makes_keys=True)
    with pytest.raises(ServiceUnavailable):
        generous.seal(queue)
    await generous.sealer.made()
    message = generous.seal(queue)
    restarted = Sealer(generous.keyring, generous.clock, makes_keys=True)

    restarted.check(queue)

    assert restarted.open(message) == BODY


def test_a_disabled_key_neither_seals_nor_opens_until_it_is_enabled(sealing: Sealing) -> None:
    now(sealing.keyring.add("orders", ACCOUNT))
    message = sealing.seal(KEYED)
    now(sealing.keyring.set_enabled("orders", False))

    for refused in (
        lambda: sealing.seal(KEYED),
        lambda: sealing.sealer.check(KEYED),
        lambda: sealing.sealer.open(message),
    ):
        with pytest.raises(KmsDisabled):
            refused()
    now(sealing.keyring.set_enabled("orders", True))
    assert sealing.sealer.open(message) == BODY


def test_notes_are_sealed_also_of_queues_without_encryption(sealing: Sealing) -> None:
    now(sealing.sealer.prepare([PLAIN]))
    for queue in (PLAIN, MANAGED):
        key = sealing.sealer.key_of_notes(queue)
        noted = key.seal(b"TaxLookup")

        assert b"TaxLookup" not in noted
        assert sealing.sealer.open_note(key.number, noted) == b"TaxLookup"
        assert sealing.sealer.open_note(key.number, noted[:-1]) is None


def test_a_note_opens_while_the_key_of_its_queue_is_enabled(sealing: Sealing) -> None:
    now(sealing.keyring.add("orders", ACCOUNT))
    sealing.seal(KEYED)
    key = sealing.sealer.key_of_notes(KEYED)
    noted = key.seal(b"TaxLookup")
    assert sealing.sealer.open_note(key.number, noted) == b"TaxLookup"
    now(sealing.keyring.set_enabled("orders", False))

    assert sealing.sealer.open_note(key.number, noted) is None
    with pytest.raises(KmsDisabled):
        sealing.sealer.key_of_notes(KEYED)


def test_only_what_the_key_of_the_queue_protects_may_be_noted(sealing: Sealing) -> None:
    now(sealing.keyring.add("orders", ACCOUNT))
    plain, managed, keyed = map(sealing.seal, (PLAIN, MANAGED, KEYED))
    unknown = msgspec.structs.replace(keyed, sealed=1 << 40)

    may = [sealing.sealer.may_note(each, MANAGED) for each in (plain, managed, keyed)]
    assert may == [True, True, False]
    assert sealing.sealer.may_note(keyed, KEYED)
    assert not sealing.sealer.may_note(keyed, PLAIN)
    assert not sealing.sealer.may_note(unknown, KEYED)


def test_a_damaged_message_opens_to_nothing_and_is_counted(sealing: Sealing) -> None:
    message = sealing.seal(MANAGED)
    flipped = message.data[:-1] + bytes([message.data[-1] ^ 1])

    for damaged in (
        msgspec.structs.replace(message, data=flipped),
        msgspec.structs.replace(message, sealed=77),
        msgspec.structs.replace(message, data=b""),
    ):
        assert sealing.sealer.open(damaged) is None
    assert sealing.sealer.broken == 3


def test_a_key_has_one_data_key_however_it_is_named(sealing: Sealing) -> None:
    key_id = now(sealing.keyring.add("orders", ACCOUNT)).key_id
    names = ("orders", "alias/orders", key_id, f"arn:aws:kms:x:{ACCOUNT}:key/{key_id}")

    numbers = {sealing.seal(queue_with(KmsMasterKeyId=name)).sealed for name in names}

    assert len(numbers) == 1


async def test_data_keys_are_replaced_when_they_sealed_long_enough(sealing: Sealing) -> None:
    now(sealing.keyring.add("orders", ACCOUNT))
    queues = [MANAGED, KEYED]
    await sealing.sealer.prepare(queues)
    first = [sealing.seal(queue) for queue in queues]

    sealing.clock.at_ms += 59_000
    await sealing.sealer.renew(queues)
    assert [sealing.seal(queue).sealed for queue in queues] == [each.sealed for each in first]

    sealing.clock.at_ms += 1_000
    await sealing.sealer.renew(queues)
    managed, keyed = (sealing.seal(queue) for queue in queues)
    assert managed.sealed == first[0].sealed
    assert keyed.sealed > first[1].sealed

    sealing.clock.at_ms += 24 * 3600 * 1000
    await sealing.sealer.renew(queues)
    assert sealing.seal(MANAGED).sealed > managed.sealed
    assert [sealing.sealer.open(each) for each in (*first, managed, keyed)] == [BODY] * 4


async def test_a_data_key_that_sealed_nothing_is_not_replaced(sealing: Sealing) -> None:
    await sealing.sealer.prepare([MANAGED])
    sealing.clock.at_ms += 48 * 3600 * 1000

    await sealing.sealer.renew([MANAGED])

    assert sealing.seal(MANAGED).sealed == 1


async def test_a_rotated_key_seals_the_next_messages(sealing: Sealing) -> None:
    now(sealing.keyring.add("orders", ACCOUNT))
    before = sealing.seal(KEYED)
    now(sealing.keyring.rotate("orders"))

    await sealing.sealer.renew([KEYED])

    assert sealing.seal(KEYED).sealed > before.sealed
    assert sealing.sealer.open(before) == BODY


# -- through the gateway ---------------------------------------------------------------------------


@pytest_asyncio.fixture
async def service() -> AsyncIterator[Service]:
    async with running() as parts:
        yield parts


async def test_messages_of_every_kind_of_queue_come_back(service: Service) -> None:
    await service.keyring.add("orders", ACCOUNT)
    for name, attributes in (
        ("managed", {}),
        ("plain", {"SqsManagedSseEnabled": "false"}),
        ("keyed", {"KmsMasterKeyId": "alias/orders"}),
        ("keyed.fifo", {"KmsMasterKeyId": "orders", "FifoQueue": "true"}),
    ):
        url = await service.make_queue(name, **attributes)
        ids = (
            {"MessageGroupId": "group-of-a-customer", "MessageDeduplicationId": "d"}
            if "fifo" in name
            else {}
        )
        sent = await service.call("SendMessage", QueueUrl=url, MessageBody=name, **ids)
        answer = await service.call(
            "ReceiveMessage", QueueUrl=url, MessageSystemAttributeNames=["All"]
        )
        (message,) = answer["Messages"]
        assert (message["Body"], message["MessageId"]) == (name, sent["MessageId"])
        assert message["Attributes"].get("MessageGroupId") == ids.get("MessageGroupId")


async def test_a_disabled_key_refuses_sends_and_receives_and_loses_nothing(
    service: Service,
) -> None:
    await service.keyring.add("orders", ACCOUNT)
    url = await service.make_queue("q", KmsMasterKeyId="orders")
    await service.call("SendMessage", QueueUrl=url, MessageBody="kept")
    await service.keyring.set_enabled("orders", False)

    for action in ("SendMessage", "ReceiveMessage"):
        refused = await service.ask(json_request(action, QueueUrl=url, MessageBody="x"))
        assert refused.status == 400
        assert refused.headers["x-amzn-query-error"] == "KMS.DisabledException;Sender"

    await service.keyring.set_enabled("orders", True)
    answer = await service.call("ReceiveMessage", QueueUrl=url)
    assert answer["Messages"][0]["Body"] == "kept"


async def test_messages_of_a_key_that_is_disabled_are_given_back(service: Service) -> None:
    """As after a move to a queue without a key: only opening them shows whose they are."""
    await service.keyring.add("orders", ACCOUNT)
    url = await service.make_queue("q", KmsMasterKeyId="orders")
    await service.call("SendMessage", QueueUrl=url, MessageBody="kept")
    await service.call(
        "SetQueueAttributes", QueueUrl=url, Attributes={"SqsManagedSseEnabled": "true"}
    )
    await service.keyring.set_enabled("orders", False)

    refused = await service.ask(json_request("ReceiveMessage", QueueUrl=url))
    assert refused.headers["x-amzn-query-error"] == "KMS.DisabledException;Sender"
    await service.keyring.set_enabled("orders", True)
    answer = await service.call(
        "ReceiveMessage", QueueUrl=url, MessageSystemAttributeNames=["ApproximateReceiveCount"]
    )
    (message,) = answer["Messages"]
    assert message["Body"] == "kept"
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


async def test_a_scheduled_message_whose_key_is_disabled_when_it_is_due_waits_for_the_key(
    service: Service,
) -> None:
    await service.keyring.add("orders", ACCOUNT)
    url = await service.make_queue("q", KmsMasterKeyId="orders")
    await service.call("TagQueue", QueueUrl=url, Tags={"holdfast:deliver-at": "on"})
    due_ms = str(time.time_ns() // 1_000_000 + 200)
    due = {"holdfast.deliver-at": {"DataType": "Number", "StringValue": due_ms}}
    await service.call("SendMessage", QueueUrl=url, MessageBody="kept", MessageAttributes=due)
    await service.keyring.set_enabled("orders", False)
    while await _count(service, url, "ApproximateNumberOfMessagesDelayed"):
        pass

    refused = await service.ask(json_request("ReceiveMessage", QueueUrl=url))

    assert refused.headers["x-amzn-query-error"] == "KMS.DisabledException;Sender"
    assert await _count(service, url, "ApproximateNumberOfMessages") == 1
    await service.keyring.set_enabled("orders", True)
    answer = await service.call(
        "ReceiveMessage", QueueUrl=url, MessageSystemAttributeNames=["ApproximateReceiveCount"]
    )
    (message,) = answer["Messages"]
    assert (message["Body"], message["Attributes"]["ApproximateReceiveCount"]) == ("kept", "1")


async def _count(service: Service, url: str, name: str) -> int:
    answer = await service.call("GetQueueAttributes", QueueUrl=url, AttributeNames=[name])
    return int(answer["Attributes"][name])
