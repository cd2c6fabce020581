"""Contents of sends, answers to receives and handles of deletes: the same bytes and refusals with
and without the native module.

A longer run: FUZZ_EXAMPLES=1000000 python -m pytest sqs_api/tests/test_native_payloads.py
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from msgspec import structs

from auth.caller import Caller
from auth.envelope import DataKey, SealBroken, data_key
from auth.native import native
from sqs_api.gateway.payload import PAYLOADS, Payloads
from sqs_api.gateway.sealer import Sealer
from sqs_api.protocol.json_codec import encode_json
from visibility.content import content as contents_module
from visibility.content.content import Extras, contents_of
from visibility.content.receipts import ReceiptKey
from visibility.contract import limits
from visibility.contract.errors import KmsDisabled, QueueError
from visibility.contract.model import Content, QueueDefinition
from visibility.contract.operations import (
    DeleteMessageBatch,
    DeleteMessageBatchRequestEntry,
    MessageAttributeValue,
    ReceiveMessage,
    SendMessage,
    SendMessageBatch,
    SendMessageBatchRequestEntry,
)
from visibility.contract.outcomes import Deliveries
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.contract.tags import taken_bounds
from visibility.tests import prepared
from visibility.tests.test_content import FIFO, FIFO_BY_CONTENT, STANDARD, TRACE, URL, queue_with

if native is None:
    pytest.skip("the native module is not built", allow_module_level=True)

_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "4000"))
_SEED = int(os.environ.get("FUZZ_SEED", "9324"))
SECRET = bytes(range(32))
CALLER = Caller("000000000000", "us-east-1", "AIDA")
SMALL = queue_with(MaximumMessageSize="1024")
TAGGED = tuple(
    prepared.queue_named("q", 1, tags=tags)
    for tags in (
        {"holdfast:priority": "weighted", "holdfast:ttl": "60"},
        {"holdfast:priority": "strict", "holdfast:deliver-at": "on"},
        {"holdfast:expired": "discard", "holdfast:deliver-at": "off"},
        {"holdfast:order": "sender-clock", "holdfast:order-window": "500"},
        {"holdfast:max-messages": "9"},
    )
)
"""Queues that take some of the attributes below."""
FIFO_QUEUES = (
    FIFO,
    FIFO_BY_CONTENT,
    structs.replace(FIFO, deduplication_scope="messageGroup"),
    prepared.queue_named("q.fifo", 1, tags={"holdfast:max-messages": "9"}, FifoQueue="true"),
)
OWN_NAMES = ("holdfast.priority", "holdfast.ttl", "holdfast.deliver-at", "holdfast.sent-at")
OWN_NUMBERS = ("0", "7", "09", "10", "1209600", "1209601", "1790000000000", "9" * 16, "9" * 20)
PIECES = (
    *("a", "hello ", '"', "\\", "/", "\n", "\t", "\x7f", "é", "€", "😀", "\u2028", "{}"),
    *("x" * 300, "\ufffd", "\ud7ff", "\ue000"),
)
ODD_PIECES = ("\x00", "\x1f", "\ufffe", "\uffff", "\ud800", "\udfff")
NAMES = ("n", "N", "a.b", "a.c", "a-1", "trace", "_", "0", "n" * 40, "n" * 256)
ODD_NAMES = (
    *("n", "é", "ſ", "a..b", ".a", "a.", "AWS.x", "amazon.y", "aws", "holdfast.ttl", "holdfast.x"),
    *("Holdfast.priority", "holdfast.priority", "holdfast.deliver-at", "a b", "\ud800", ""),
    *("n" * 257, "n" * 256, "İ"),
)
IDS = ("g", "h", "!~", "i" * 31, "i" * 32, "i" * 128)
ODD_IDS = ("", "ü", "a b", "\x7f", "\ud800", "i" * 129)
NUMBERS: tuple[str, ...] = (
    "1",
    "-2.5",
    "0",
    "9" * 38,
    "+1",
    "1e5",
    ".5",
    "1.",
    "",
    "-",
    "9" * 39,
    "1" + "0" * 60,
)
NUMBERS += ("٣", "1_0", "0x1", " 1", "0.0", "00." + "0" * 40)
ODD_VALUES: tuple[dict[str, Any], ...] = (
    *({"string_value": ""}, {"binary_value": b""}, {"string_value": "", "binary_value": b"x"}),
    *({"string_value": "x", "binary_value": b""}, {"string_value": "x", "string_list_values": []}),
    *({"string_value": "x", "string_list_values": ["y"]}, {"binary_list_values": [b"y"]}),
)
SYSTEM_NAMES = ("All", "SenderId", "SentTimestamp", "SequenceNumber", "MessageGroupId")
TYPES: tuple[str, ...] = ("String", "Number", "Binary", "String.x", "Binary.gif", "Number.int")
TYPES += ("Strange", "", "string", "String.", "Binary.é", "String.a b", "Number." + "x" * 250)


class _Keys:
    """A sealer with one key, or with none that works."""

    digest_key = b"digests"

    def __init__(self, key: DataKey | None, *, works: bool = True) -> None:
        self.key = key
        self.works = works
        self.broken = 0

    def key_of(self, queue: QueueDefinition) -> DataKey | None:
        if not self.works:
            raise KmsDisabled("It is disabled.")
        return self.key

    def opening_key(self, message: StoredMessage, admit: object) -> DataKey | None:
        if not self.works:
            raise KmsDisabled("It is disabled.")
        if message.sealed == 0:
            return None
        if message.sealed == 5:
            raise SealBroken("there is no such key")
        assert self.key is not None
        return self.key

    def open(self, message: StoredMessage, admit: object = None) -> bytes | None:
        try:
            key = self.opening_key(message, admit)
            return message.data if key is None else key.open(message.data)
        except SealBroken:
            self.broken += 1
            return None


# -- sends -----------------------------------------------------------------------------------------


def test_contents_are_those_of_python() -> None:
    chance = random.Random(_SEED)
    native_key, python_key = data_key(3, SECRET), DataKey(3, SECRET)
    plain = refused = own = 0
    for _ in range(_EXAMPLES):
        operation, queue = _send(chance)
        trace = chance.choice((None, None, None, None, TRACE, "\x00"))
        works, sealed = chance.random() < 0.95, chance.random() < 0.8
        arguments = (operation, queue, "AIDA", trace)
        fast = _Keys(native_key if sealed else None, works=works)
        slow = _Keys(python_key if sealed else None, works=works)

        written = _outcome(lambda: contents_of(*arguments, fast))  # noqa: B023
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(contents_module, "native", None)
            expected = _outcome(lambda: contents_of(*arguments, slow))  # noqa: B023

        assert written == expected, operation
        assert native_key.count == python_key.count
        is_refused = type(expected) is str
        refused += is_refused
        plain += not is_refused and all(isinstance(each, Content) for each in expected)
        own += not is_refused and any(_has_meaning(each) for each in expected)

    assert plain > _EXAMPLES / 4
    assert own > _EXAMPLES / 100
    assert refused > _EXAMPLES / 20


@pytest.mark.parametrize(
    ("name", "value", "data_type", "number"),
    [
        ("holdfast.priority", "9", "Number", 9),
        ("holdfast.ttl", "0060", "Number.s", 60),
        ("holdfast.priority", "10", "Number", None),
        ("holdfast.ttl", "0", "Number", None),
        ("holdfast.priority", "1.0", "Number", None),
        ("holdfast.priority", "1", "String", None),
        ("Holdfast.priority", "1", "Number", None),
        ("holdfast.deliver-at", "1790000000000", "Number", None),
    ],
)
def test_attributes_with_a_meaning_are_read_once(
    name: str, value: str, data_type: str, number: int | None
) -> None:
    attributes = {"n": MessageAttributeValue("String", "x")}
    attributes[name] = MessageAttributeValue(data_type, value)
    message = SendMessage(URL, "x", None, attributes)
    bounds = taken_bounds(TAGGED[0].settings.own_tags)

    packed = native.packed([message], b"\x95\xc0", None, 99, 99, bounds)

    assert packed is None if number is None else packed[0][4] == {name: number}
    assert native.packed([message], b"\x95\xc0", None, 99, 99) is None


def test_ids_of_a_message_are_packed_with_it() -> None:
    message = SendMessage(URL, "x", message_group_id="g", message_deduplication_id="d" * 128)

    packed = native.packed([message], b"\x95\xa1s\xc0\xc0\xc0\xc0", None, 99, 99, None, True)

    assert packed is not None
    extras = msgspec.msgpack.encode(Extras("s", None, "g", "d" * 128))
    assert packed[0][0].endswith(b"x" + extras)


@pytest.mark.parametrize("odd", ODD_IDS)
def test_odd_ids_are_left_to_python(odd: str) -> None:
    for ids in (("g", odd), (odd, "d")):
        message = SendMessage(URL, "x", message_group_id=ids[0], message_deduplication_id=ids[1])
        assert (
            native.packed([message], b"\x95\xa1s\xc0\xc0\xc0\xc0", None, 99, 99, None, True) is None
        )


def test_a_batch_that_is_refused_uses_up_no_count() -> None:
    key = data_key(1, SECRET)
    messages = [SendMessage(URL, body) for body in ("a", "b" * 2_000, "c")]
    strange = {"n": MessageAttributeValue("Strange", "x")}
    bound = limits.BATCH_BYTES_MAX

    for refused, size_max, total_max in (
        (messages, 1_999, bound),
        (messages, 2_000, 2_001),
        ([*messages, SendMessage(URL, "\x00")], 2_000, bound),
        ([*messages, SendMessage(URL, None)], 2_000, bound),
        ([*messages, SendMessage(URL, "a", None, strange)], 2_000, bound),
    ):
        assert native.packed(refused, b"x", key, size_max, total_max) is None
    assert native.packed(messages, b"x", DataKey(1, SECRET), 2_000, 2_002) is None
    assert key.count == 0
    assert native.packed(messages, b"x", key, 2_000, 2_002) is not None
    assert key.count == 3


def test_no_count_is_used_twice_by_the_calls_that_seal() -> None:
    key, chance = data_key(1, SECRET), random.Random(_SEED)
    key.count = (1 << 40) + 5
    counts: list[bytes] = []
    for _ in range(200):
        if chance.random() < 0.5:
            counts.append(key.seal(b"x")[:8])
        else:
            messages = [SendMessage(URL, "a")] * chance.randrange(1, 11)
            counts += [each[0][:8] for each in native.packed(messages, b"x", key, 9, 99)]

    first = (1 << 40) + 6
    assert counts == [(first + each).to_bytes(8, "big") for each in range(len(counts))]


def _has_meaning(content: object) -> bool:
    return isinstance(content, Content) and bool(
        content.deliver_at_ms or content.ttl_ms or content.level or content.sent_at_ms
    )


def _outcome(call: Callable[[], Any]) -> Any:
    """The value of a call, with refusals as texts."""
    try:
        returned = call()
    except (QueueError, UnicodeError) as error:
        return f"{type(error).__name__}: {error}"
    if isinstance(returned, tuple):
        return [f"{type(e).__name__}: {e}" if isinstance(e, QueueError) else e for e in returned]
    return returned


def _text(chance: random.Random, odd: float = 0.01) -> str:
    pieces = [chance.choice(PIECES) for _ in range(chance.randrange(6))]
    if chance.random() < odd:
        pieces.append(chance.choice(ODD_PIECES))
    return "".join(pieces)


def _send(chance: random.Random) -> tuple[SendMessage | SendMessageBatch, QueueDefinition]:
    queue = chance.choice((*[STANDARD] * 4, SMALL, *FIFO_QUEUES, *TAGGED, *TAGGED))
    plain = chance.random() < 0.6
    if chance.random() < 0.3:
        return SendMessage(URL, **_members(chance, queue, plain=plain)), queue
    members = [_members(chance, queue, plain=plain) for _ in range(chance.randrange(1, 11))]
    if chance.random() < 0.005:
        members[0]["message_body"] = "é" * chance.choice((limits.BATCH_BYTES_MAX // 2, 700_000))
    entries = [SendMessageBatchRequestEntry(str(n), **each) for n, each in enumerate(members)]
    return SendMessageBatch(URL, entries), queue


def _members(chance: random.Random, queue: QueueDefinition, *, plain: bool) -> dict[str, Any]:
    members: dict[str, Any] = {"message_body": _text(chance)}
    if chance.random() < 0.05:
        members["delay_seconds"] = chance.choice((0, 1, 900, 901, -1))
    if queue.settings.fifo:
        members["message_group_id"] = chance.choice((*IDS, "g", None))
        members["message_deduplication_id"] = chance.choice((*IDS, "d", None))
        if chance.random() < 0.05:
            members["message_group_id"] = chance.choice(ODD_IDS)
            members["message_deduplication_id"] = chance.choice(ODD_IDS)
    elif not plain and chance.random() < (0.1 if queue in TAGGED else 0.5):
        members["message_group_id"] = chance.choice((*IDS, *ODD_IDS))
        if chance.random() < 0.1:
            members["message_deduplication_id"] = "d"
    if not plain and chance.random() < 0.5:
        members["message_attributes"] = _attributes(chance)
        if queue in TAGGED and chance.random() < 0.7:
            name, value = chance.choice(OWN_NAMES), chance.choice(OWN_NUMBERS)
            kind = chance.choice(("Number", "Number", "Number.x", "String"))
            members["message_attributes"][name] = MessageAttributeValue(kind, value)
    if not plain and chance.random() < 0.2:
        trace = MessageAttributeValue("String", TRACE)
        members["message_system_attributes"] = {"AWSTraceHeader": trace}
    return members


def _attributes(chance: random.Random) -> dict[str, MessageAttributeValue]:
    given = {}
    odd = chance.random() < 0.1
    for name in chance.sample(ODD_NAMES if odd else NAMES, chance.randrange(12 if odd else 4)):
        data_type = chance.choice(TYPES if odd else TYPES[:6])
        value = _text(chance) or "v"
        if "Number" in data_type:
            value = chance.choice(NUMBERS if odd else NUMBERS[:4])
        binary = chance.randbytes(chance.choice((1, 5, 255, 256, 300)))
        members: dict[str, Any] = {"string_value": value}
        if data_type.startswith("Binary"):
            members = {"binary_value": binary}
        if odd and chance.random() < 0.2:
            members = chance.choice(
                ({}, *ODD_VALUES, {"string_value": "a", "binary_value": binary})
            )
        given[name] = MessageAttributeValue(data_type, **members)
    return given


# -- receives --------------------------------------------------------------------------------------


def test_receives_are_written_as_in_python() -> None:
    chance = random.Random(_SEED)
    seals, reads = data_key(3, SECRET), DataKey(3, SECRET)
    by_call = 0
    for _ in range(_EXAMPLES):
        queue = chance.choice((STANDARD, FIFO))
        works = chance.random() < 0.98
        keys = _Keys(seals, works=works), _Keys(reads, works=works)
        operation = ReceiveMessage(
            URL,
            message_system_attribute_names=_names(chance, SYSTEM_NAMES),
            message_attribute_names=_names(chance, (*NAMES, "All", ".*", "a.*", "é.*", "\ud800")),
        )
        deliveries = _deliveries(chance, seals, sealed=chance.choice((0, 3, 3, 3)))
        outcomes = [_answer(each, operation, queue, deliveries) for each in keys]
        expected = _answer(keys[1], operation, queue, deliveries, as_json=False)

        assert outcomes[0][1] == outcomes[1][1] == expected[1], deliveries
        assert keys[1].broken == 2 * keys[0].broken
        by_call += outcomes[0][0]

    assert by_call > _EXAMPLES / 4


def _answer(
    keys: _Keys,
    operation: ReceiveMessage,
    queue: QueueDefinition,
    deliveries: Deliveries,
    *,
    as_json: bool = True,
) -> tuple[bool, Any]:
    """True if the native module wrote it, and the answer in JSON, or the refusal."""
    payloads = Payloads(cast(Sealer, keys), lambda: 0.0, on_opened=())
    received = _outcome(lambda: payloads.received(operation, queue, deliveries, as_json=as_json))
    if isinstance(received, str):
        return False, received
    if isinstance(received, bytes):
        return True, received
    return False, encode_json(received)


def _names(chance: random.Random, names: tuple[str, ...]) -> list[str] | None:
    if chance.random() < 0.4:
        return None
    return chance.sample(names, chance.randrange(4))


def _deliveries(chance: random.Random, key: DataKey, sealed: int) -> Deliveries:
    odd = 0.1 if chance.random() < 0.2 else 0.0
    leases, messages = [], []
    for _ in range(chance.randrange(1, 11)):
        content = _stored(chance, odd)
        data = key.seal(content) if sealed else content
        number = sealed
        if sealed and chance.random() < odd / 4:
            place = chance.randrange(len(data))
            data = data[:place] + bytes([data[place] ^ (1 << chance.randrange(8))]) + data[place:]
        if chance.random() < odd / 4:
            number = chance.choice((3, 5)) if sealed else 0
        source = chance.choice((None, None, 'arn:"x"'))
        message_id = chance.choice(("a-b", 'a"b', "é"))
        at_ms = chance.choice((0, 1_700_000_000_123, -5))
        messages.append(StoredMessage(message_id, at_ms, 1, data, number, source))
        sequence = chance.choice((1, 1 << 40, (1 << 63) - 1))
        original = chance.choice((0, 0, 7))
        counted = chance.choice((1, 2, (1 << 32) - 1))
        leases.append(Lease(sequence, 0, counted, 0, at_ms + 1, 0, original_sequence=original))
    return Deliveries(leases, messages)


def _stored(chance: random.Random, odd: float) -> bytes:
    """The content of a message that was sent, or of an odd one."""
    queue = chance.choice((STANDARD, FIFO))
    members = _members(chance, queue, plain=chance.random() < 0.4)
    members["message_body"] = "".join(chance.choice(PIECES) for _ in range(chance.randrange(6)))
    members.pop("delay_seconds", None)
    if queue.settings.fifo:
        members |= {"message_group_id": "g", "message_deduplication_id": "é" if odd else "d"}
    try:
        (content,) = contents_of(SendMessage(URL, **members), queue, "AI\nDA", None)
    except QueueError:
        return _stored(chance, odd)
    assert isinstance(content, Content)
    if chance.random() >= odd:
        return content.data
    return content.data[: _end(content.data)] + _odd_extras(chance, content.data)


def _odd_extras(chance: random.Random, data: bytes) -> bytes:
    """Extras of another version of the service."""
    extras = data[_end(data) :]
    fields = list(msgspec.structs.astuple(msgspec.msgpack.decode(extras, type=Extras)))
    attributes = dict.fromkeys(map(str, range(chance.randrange(1, 30))), ("String", b"v"))
    match chance.randrange(4):
        case 0:
            fields.append(chance.choice((None, 1, "x", [])))
        case 1:
            fields = fields[: chance.randrange(1, 5)]
        case 2:
            fields[4] = attributes
        case _:
            fields[4] = {"t": ("Binary", bytes(chance.choice((0, 300, 70_000))))}
    return msgspec.msgpack.encode(fields)


def _end(data: bytes) -> int:
    return 20 + int.from_bytes(data[16:20], "big")


def test_odd_contents_are_left_to_python() -> None:
    """Whatever the bytes, the module writes what Python writes, or nothing."""
    chance = random.Random(_SEED)
    payloads = Payloads(cast(Sealer, _Keys(None)), lambda: 0.0, on_opened=())
    operation = ReceiveMessage(URL, ["All"], None, ["All"])
    written = 0
    for _ in range(_EXAMPLES):
        data = bytearray(_stored(chance, 0.0))
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(len(data))
            data[place] = chance.choice((data[place] ^ (1 << chance.randrange(8)), 0xC0, 0x92))
        data = data[: chance.choice((len(data), chance.randrange(len(data) + 1)))]
        lease = Lease(1, 0, 1, 0, 0, 0)
        deliveries = Deliveries([lease], [StoredMessage("id", 0, 1, bytes(data))])
        received = native.received_json(
            None, 0, deliveries.leases, deliveries.messages, *_with_all(payloads, operation)
        )
        if received is not None:
            written += 1
            shown = payloads.received(operation, STANDARD, deliveries)
            assert not isinstance(shown, bytes)
            assert encode_json(shown) == received, data

    assert written > _EXAMPLES / 100


def _with_all(payloads: Payloads, operation: ReceiveMessage) -> tuple[Any, Any, bool]:
    selection = contents_module.selection_of(operation)
    return ReceiptKey(STANDARD.receipt_key).native, selection.native, False


# -- deletes ---------------------------------------------------------------------------------------


def test_handles_of_a_batch_are_read_as_one_by_one() -> None:
    chance = random.Random(_SEED)
    payloads = Payloads(cast(Sealer, _Keys(None)), lambda: 0.0, on_opened=())
    key = ReceiptKey(STANDARD.receipt_key)
    make = PAYLOADS[DeleteMessageBatch]
    sound = 0
    for _ in range(_EXAMPLES):
        odd = chance.random() < 0.3
        handles = [key.handle(chance.getrandbits(64), chance.getrandbits(32)) for _ in range(10)]
        for place in chance.sample(range(10), chance.randrange(4) if odd else 0):
            cut = chance.randrange(57)
            other = (handles[place][:cut], handles[place].upper(), "", "x" * 56, _text(chance, 0.5))
            handles[place] = chance.choice(other)
        entries = [DeleteMessageBatchRequestEntry(str(n), each) for n, each in enumerate(handles)]
        operation = DeleteMessageBatch(URL, entries)

        parts = _outcome(lambda: make(payloads, operation, STANDARD, CALLER, {}))  # noqa: B023

        expected = _outcome(lambda: tuple([_receipt(key, each) for each in handles]))  # noqa: B023
        assert parts == expected
        sound += not odd

    assert sound > _EXAMPLES / 4


def _receipt(key: ReceiptKey, handle: str) -> object:
    try:
        return key.receipt(handle)
    except QueueError as refusal:
        return refusal
