"""The content of a message: from a request to the stored bytes, and from those to an answer.

The gateway does this part without the queue's state, so a shard sees only `Content.data` and its
size. Pure. Layout of `Content.data`, version 0:

    offset  bytes  what
         0     16  MD5 of the body
        16      1  version of the layout, 0
        17      3  length of the body in bytes, big-endian (SQS ends at 1 MiB, this at 16 MiB)
        20      n  the body in UTF-8
      20+n   rest  Extras as a msgpack array; readers ignore elements they do not know

A new element of Extras goes at its end, with a default. Anything else is a new version: write it
only once every reader understands it. There is no checksum here: storage has one.
Source: SQS developer guide and recorded answers; the MD5 recipes are in `digests`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from auth.native import native
from visibility.content.id_digests import deduplication_digest, group_digest
from visibility.content.sealing import AsStored, SealingKey, SendSealing
from visibility.contract import limits
from visibility.contract.death import CAUSE_ATTRIBUTE, Death, shown_cause
from visibility.contract.digests import Attributes, md5_of_attributes, md5_of_body
from visibility.contract.errors import (
    BatchRequestTooLong,
    InvalidMessageContents,
    InvalidParameterValue,
    MissingParameter,
    QueueError,
    without_frames,
)
from visibility.contract.model import Content, QueueDefinition
from visibility.contract.naming import (
    SYSTEM_ATTRIBUTE_NAMES,
    check_token,
    checked_utf8,
    first_forbidden,
    is_plain,
    shown_arn,
)
from visibility.contract.operations import (
    ReceiveMessage,
    SendMessage,
    SendMessageBatch,
    SendMessageBatchRequestEntry,
)
from visibility.contract.priority import level_of
from visibility.contract.results import Message, ReceivedAttributeValue
from visibility.contract.schedule import deliver_at_ms
from visibility.contract.sender_order_tags import check_placed, sent_at_ms
from visibility.contract.tags import own_numbers
from visibility.contract.time_to_live_tags import own_ttl_ms
from visibility.contract.validate import check_delay_seconds, checked_attributes

TRACE_HEADER = "AWSTraceHeader"
_TRACEPARENT = "traceparent"
_BODY_AT = 20
_CACHED_MAX = 1_024  # entries of each cache below, which is cleared when full
_CACHED_NAMES_LENGTH_MAX = 1_024  # characters; a longer choice of names is not kept

_SINGLE_TOO_LONG = (
    "One or more parameters are invalid. Reason: Message must be shorter than {} bytes."
)
_ENTRY_TOO_LONG = (
    "One or more parameters cannot be validated. Reason: Message must be shorter than {} bytes."
)

_Sent = SendMessage | SendMessageBatchRequestEntry
_Packed = tuple[bytes, int, str, str | None, str | None, bytes, bytes, int, int, int, int]
"""The fields of a Content that is not sealed yet."""
_DELAYS = range(limits.DELAY_SECONDS.low, limits.DELAY_SECONDS.high + 1)
_BATCH_BYTES_MAX = limits.BATCH_BYTES_MAX  # read for each send
_AS_STORED = AsStored()
_NOTHING_OWN = (0, 0, 0, 0)


class Extras(msgspec.Struct, frozen=True, array_like=True):
    """The stored part of a message beside its body. Stored form: only ever append elements."""

    sender: str
    trace_header: str | None = None
    group_id: str | None = None
    deduplication_id: str | None = None
    attributes: Attributes | None = None


_encode_extras = msgspec.msgpack.Encoder().encode
_decode_extras = msgspec.msgpack.Decoder(Extras).decode
_plain_extras: dict[str, bytes] = {}


# -- sending ---------------------------------------------------------------------------------------


def contents_of(
    operation: SendMessage | SendMessageBatch,
    queue: QueueDefinition,
    sender: str,
    trace_header: str | None,
    sealing: SendSealing = _AS_STORED,
) -> tuple[Content | QueueError, ...]:
    """The messages of a send, sealed and ready to store, in the order of the request.

    `operation` has passed `validate.check`; `sender` is shown as SenderId; `trace_header` is the
    request's X-Amzn-Trace-Id. A refused entry of a batch is a value. Everything else is raised: the
    errors of `sealing`, each refusal of a SendMessage, and for a batch BatchRequestTooLong, or
    InvalidParameterValue when an entry for a FIFO queue lacks its group or deduplication id.
    """
    trace = trace_header if trace_header and is_plain(trace_header) else None
    if native is not None and trace is None:
        sent: Sequence[_Sent] = (
            (operation,) if isinstance(operation, SendMessage) else operation.entries or ()
        )
        plain = _plain_contents(sent, queue, sender, sealing)
        if plain is not None:
            return plain
    if isinstance(operation, SendMessage):
        if queue.settings.fifo:
            _check_fifo_ids(operation, queue, MissingParameter)
        packed = _pack(operation, queue, sender, trace, sealing.digest_key, _SINGLE_TOO_LONG)
        return (_content(packed, sealing.key_of(queue)),)
    entries = operation.entries
    assert entries
    if queue.settings.fifo:
        for entry in entries:
            _check_fifo_ids(entry, queue, InvalidParameterValue)
    messages: list[_Packed | QueueError] = []
    if sum(len(entry.message_body or "") for entry in entries) <= limits.BATCH_BYTES_MAX:
        digest_key = sealing.digest_key
        messages = [_pack_entry(entry, queue, sender, trace, digest_key) for entry in entries]
        total = 0
        for message, entry in zip(messages, entries, strict=True):
            total += message[1] if type(message) is tuple else _size(entry)
    else:  # at least as many bytes as characters: too long in any case, do not hash it
        total = sum(map(_size, entries))
    if total > limits.BATCH_BYTES_MAX:
        raise BatchRequestTooLong(
            f"Batch requests cannot be longer than {limits.BATCH_BYTES_MAX} bytes. "
            f"You have sent {total} bytes."
        )
    key = None
    if any(type(message) is tuple for message in messages):
        key = sealing.key_of(queue)
    return tuple([m if isinstance(m, QueueError) else _content(m, key) for m in messages])


def contents_of_sends(
    sends: Sequence[SendMessage],
    queue: QueueDefinition,
    sender: str,
    trace_header: str | None,
    sealing: SendSealing = _AS_STORED,
) -> tuple[Content | QueueError, ...]:
    """The messages of several sends to one queue, each as `contents_of` makes it; a refusal is in
    the place of its send."""
    if native is not None and trace_header is None:
        plain = _plain_contents(sends, queue, sender, sealing)
        if plain is not None:
            return plain
    contents: list[Content | QueueError] = []
    for send in sends:
        try:
            contents += contents_of(send, queue, sender, trace_header, sealing)
        except QueueError as refusal:
            contents.append(without_frames(refusal))
    return tuple(contents)


def _plain_contents(
    sent: Sequence[_Sent], queue: QueueDefinition, sender: str, sealing: SendSealing
) -> tuple[Content, ...] | None:
    """The messages of a send, by the native module; None where Python has to look at them."""
    settings = queue.settings
    fifo = has_groups = settings.fifo
    delays = () if settings.own_tags or fifo else _DELAYS
    for message in sent:
        if fifo or message.message_group_id is not None:
            ids = message.message_group_id, message.message_deduplication_id
            if settings.own_tags or ids[0] is None or (ids[1] is None) is fifo:
                return None
            has_groups = True
        elif message.message_deduplication_id is not None:
            return None
        if message.message_system_attributes is not None or (
            message.delay_seconds is not None and message.delay_seconds not in delays
        ):
            return None
    try:
        key = sealing.key_of(queue)
    except QueueError:
        return None  # it is raised again in its turn
    extras = _plain_extras.get(sender) or _remembered_extras(sender)
    size_max, bounds = settings.maximum_message_size, settings.own_bounds
    packed = native.packed(sent, extras, key, size_max, _BATCH_BYTES_MAX, bounds, has_groups)
    if packed is None:
        return None
    number = 0 if key is None else key.number
    if not has_groups and len(packed) == 1:  # without the loop's costs
        data, size, md5, attributes_md5, numbers = packed[0]
        if numbers is None:
            return (Content(data, size, md5, attributes_md5, None, b"", b"", number),)
    if not has_groups and bounds is None:
        return tuple(
            [
                Content(data, size, md5, attributes_md5, None, b"", b"", number)
                for data, size, md5, attributes_md5, _ in packed
            ]
        )
    contents = []
    for message, (data, size, md5, attributes_md5, numbers) in zip(sent, packed, strict=True):
        ids = message.message_group_id, message.message_deduplication_id
        digests = _digests(*ids, queue, sealing.digest_key)
        own = _NOTHING_OWN if numbers is None else _own(numbers, None)
        contents.append(Content(data, size, md5, attributes_md5, None, *digests, number, *own))
    return tuple(contents)


def _digests(
    group_id: str | None, deduplication_id: str | None, queue: QueueDefinition, key: bytes
) -> tuple[bytes, bytes]:
    """The digests of a message's ids, each empty without one."""
    group = b"" if group_id is None else group_digest(group_id, key)
    if deduplication_id is None:
        return group, b""
    scope = group_id if queue.deduplication_scope == "messageGroup" else None
    return group, deduplication_digest(scope, deduplication_id, key)


def _own(numbers: dict[str, int], delay_s: int | None) -> tuple[int, int, int, int]:
    """The fields of a Content that follow from the attributes with a meaning for this service.
    Raises InvalidParameterValue."""
    at_ms = deliver_at_ms(numbers, delay_s)
    return at_ms, own_ttl_ms(numbers), level_of(numbers), sent_at_ms(numbers)


def _content(packed: _Packed, key: SealingKey | None) -> Content:
    data, size, md5, attributes_md5, system_md5, group, deduplication, *own = packed
    number = 0
    if key is not None:
        data, number = key.seal(data), key.number
    return Content(
        data,
        size,
        md5,
        attributes_md5,
        system_md5,
        group,
        deduplication,
        number,
        *own,
    )


def _check_fifo_ids(message: _Sent, queue: QueueDefinition, missing: type[QueueError]) -> None:
    """Refuse a message for a FIFO queue without its ids; `missing` differs for batches."""
    if message.message_group_id is None:
        raise missing("The request must contain the parameter MessageGroupId.")
    if message.message_deduplication_id is None and not _deduplicates_by_content(queue):
        raise InvalidParameterValue(
            "The queue should either have ContentBasedDeduplication enabled or "
            "MessageDeduplicationId provided explicitly"
        )


def _deduplicates_by_content(queue: QueueDefinition) -> bool:
    return queue.settings.content_based_deduplication


def _size(message: SendMessageBatchRequestEntry) -> int:
    """The size that AWS counts, also of a message that is then refused for its characters."""
    assert message.message_body is not None
    body = message.message_body
    size = len(body) if body.isascii() else len(body.encode(errors="surrogatepass"))
    for name, value in (message.message_attributes or {}).items():
        for text in (name, value.data_type, value.string_value):
            size += len(text.encode(errors="surrogatepass")) if text else 0
        size += len(value.binary_value or b"")
    return size


def _pack_entry(
    entry: SendMessageBatchRequestEntry,
    queue: QueueDefinition,
    sender: str,
    trace: str | None,
    digest_key: bytes,
) -> _Packed | QueueError:
    try:
        if entry.delay_seconds is not None:
            check_delay_seconds(entry.delay_seconds)
        return _pack(entry, queue, sender, trace, digest_key, _ENTRY_TOO_LONG)
    except QueueError as refusal:
        return without_frames(refusal)


def _pack(
    message: _Sent,
    queue: QueueDefinition,
    sender: str,
    trace: str | None,
    digest_key: bytes,
    too_long: str,
) -> _Packed:
    assert message.message_body is not None
    if queue.settings.own_tags:
        check_placed(message.message_group_id, message.delay_seconds, queue.settings.own_tags)
    is_plain = (
        trace is None
        and message.message_group_id is None
        and message.message_deduplication_id is None
        and message.message_attributes is None
        and message.message_system_attributes is None
    )
    body = checked_utf8(message.message_body)
    if body is None:
        raise _invalid_body(message.message_body)
    size = len(body)
    attributes_md5 = system_md5 = None
    group = deduplication = b""
    own = _NOTHING_OWN
    if is_plain:
        extras = _plain_extras.get(sender) or _remembered_extras(sender)
    else:
        attributes, system = _attributes_of(message)
        if attributes:
            size += sum(len(n.encode()) + len(t) + len(v) for n, (t, v) in attributes.items())
            attributes_md5 = md5_of_attributes(attributes)
            numbers = own_numbers(attributes, queue.settings.own_tags)
            own = _own(numbers, message.delay_seconds) if numbers else own
        if system:
            system_md5 = md5_of_attributes(system)
            trace = system[TRACE_HEADER][1].decode()
        _check_ids(message, queue)
        group_id, deduplication_id = message.message_group_id, message.message_deduplication_id
        if queue.settings.fifo:
            deduplication_id = deduplication_id or hashlib.sha256(body).hexdigest()
        group, deduplication = _digests(group_id, deduplication_id, queue, digest_key)
        extras = _encode_extras(
            Extras(sender, trace, group_id, deduplication_id, attributes or None)
        )
    if size > queue.settings.maximum_message_size:
        raise InvalidParameterValue(too_long.format(queue.settings.maximum_message_size))
    md5 = md5_of_body(body)
    # The first of the four bytes is the version of the layout, 0.
    data = b"".join((md5, len(body).to_bytes(4, "big"), body, extras))
    md5_text = md5.hex()
    return (
        data,
        size,
        md5_text,
        attributes_md5,
        system_md5,
        group,
        deduplication,
        *own,
    )


def _remembered_extras(sender: str) -> bytes:
    if len(_plain_extras) >= _CACHED_MAX:
        _plain_extras.clear()
    extras = _plain_extras[sender] = _encode_extras(Extras(sender))
    return extras


def _invalid_body(text: str) -> InvalidMessageContents:
    return InvalidMessageContents(
        f"Invalid binary character '#x{ord(first_forbidden(text)):X}' was found in the message "
        "body, the set of allowed characters is #x9 | #xA | #xD | [#x20-#xD7FF] | [#xE000-#xFFFD] "
        "| [#x10000-#x10FFFF]."
    )


def _check_ids(message: _Sent, queue: QueueDefinition) -> None:
    if message.message_group_id is not None:
        check_token("MessageGroupId", message.message_group_id)
    deduplication_id = message.message_deduplication_id
    if queue.settings.fifo:
        if deduplication_id is not None:
            check_token("MessageDeduplicationId", deduplication_id)
        if message.delay_seconds:
            raise _unfit(message, "DelaySeconds", message.delay_seconds)
    elif deduplication_id is not None:
        raise _unfit(message, "MessageDeduplicationId", deduplication_id)


def _unfit(message: _Sent, name: str, value: str | int) -> InvalidParameterValue:
    """The refusal of a parameter for queues of the other type; in a batch AWS gives the reason
    alone."""
    reason = "The request include parameter that is not valid for this queue type"
    if isinstance(message, SendMessageBatchRequestEntry):
        return InvalidParameterValue(reason)
    return InvalidParameterValue(
        f"Value {value} for parameter {name} is invalid. Reason: {reason}."
    )


def _attributes_of(message: _Sent) -> tuple[Attributes, Attributes]:
    """The checked message attributes and message system attributes."""
    attributes = checked_attributes(message.message_attributes or {}, "user")
    given = message.message_system_attributes or {}
    for name in given:
        if name != TRACE_HEADER:
            raise InvalidParameterValue(f"Message system attribute name '{name}' is invalid.")
    system = checked_attributes(given, "system")
    if system and system[TRACE_HEADER][0] != "String":
        raise InvalidParameterValue(
            f"The type of message (system) attribute '{TRACE_HEADER}' is invalid. "
            "You must use only the following supported type prefixes: String."
        )
    return attributes, system


# -- receiving -------------------------------------------------------------------------------------


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """One message handed to one receiver; `data` is Content.data, `receive_count` includes this.

    `sequence_number` is in the client's form: decimal digits, FIFO only.
    """

    message_id: str
    receipt_handle: str
    sent_at_ms: int
    receive_count: int
    first_received_at_ms: int
    dead_letter_source_arn: str | None
    data: bytes
    sequence_number: str | None = None
    death: Death | None = None


class Selection(msgspec.Struct, frozen=True):
    """The attributes that a receive returns, worked out once by `selection_of`.

    `system` has the names in the order of the service model, `cause` is true if CAUSE_ATTRIBUTE is
    asked for by its name. `names` and `prefixes` choose message
    attributes, `everything` all of them.
    """

    system: tuple[str, ...] = ()
    cause: bool = False
    everything: bool = False
    names: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    native: Any = None
    """The same in the native module; None where Python decides."""


NOTHING = Selection()
_WILDCARDS = frozenset(("All", "*", ".*"))
_selections: dict[tuple[tuple[str, ...], tuple[str, ...]], Selection] = {}


def selection_of(operation: ReceiveMessage) -> Selection:
    """The attributes this receive returns.

    MessageSystemAttributeNames decides unless it is empty, else the older AttributeNames. For
    message attributes `All`, `*` and `.*` mean all, `Foo.*` every name that starts with `Foo`.
    """
    system = operation.message_system_attribute_names or operation.attribute_names
    names = operation.message_attribute_names
    if not system and not names:
        return NOTHING
    key = (tuple(system or ()), tuple(names or ()))
    return _selections.get(key) or _remembered_selection(key)


def _remembered_selection(key: tuple[tuple[str, ...], tuple[str, ...]]) -> Selection:
    system, names = key
    all_system = "All" in system
    shown = tuple(name for name in SYSTEM_ATTRIBUTE_NAMES if all_system or name in system)
    cause, everything = CAUSE_ATTRIBUTE in system, not _WILDCARDS.isdisjoint(names)
    prefixes = tuple(name[:-2] for name in names if name.endswith(".*"))
    same = None
    if native is not None and not cause:
        same = native.selection(shown, everything, names, prefixes)
    selection = Selection(shown, cause, everything, frozenset(names), prefixes, same)
    if sum(map(len, system + names)) + len(system) + len(names) <= _CACHED_NAMES_LENGTH_MAX:
        if len(_selections) >= _CACHED_MAX:
            _selections.clear()
        _selections[key] = selection
    return selection


def unpack(data: bytes) -> tuple[str, str, Extras]:
    """A message's stored content: the MD5 of its body in hex, the body, and the rest."""
    end = _end_of_body(data)
    return data[:16].hex(), data[_BODY_AT:end].decode(), _decode_extras(data[end:])


def with_body(data: bytes, body: str) -> bytes:
    """Stored content with another body."""
    encoded = body.encode()
    head = md5_of_body(encoded) + len(encoded).to_bytes(4, "big")
    return head + encoded + data[_end_of_body(data) :]


def trace_of(data: bytes) -> tuple[str | None, str | None]:
    """The message attribute `traceparent` and the AWSTraceHeader of stored content."""
    extras = _decode_extras(data[_end_of_body(data) :])
    kind, value = (extras.attributes or {}).get(_TRACEPARENT, ("", b""))
    is_text = kind.partition(".")[0] == "String"
    return value.decode() if is_text else None, extras.trace_header


def _end_of_body(data: bytes) -> int:
    end = _BODY_AT + int.from_bytes(data[16:_BODY_AT], "big")
    assert end < len(data), "layout version 0, and extras behind the body"
    return end


def plain_message_of(message_id: str, receipt_handle: str, data: bytes) -> Message:
    """The message for a receive that asks for no attributes."""
    end = _end_of_body(data)
    return Message(message_id, receipt_handle, data[:16].hex(), data[_BODY_AT:end].decode())


def message_of(delivery: Delivery, selection: Selection) -> Message:
    """The message as the client sees it; the MD5 of attributes covers only the returned ones."""
    if selection is NOTHING:
        return plain_message_of(delivery.message_id, delivery.receipt_handle, delivery.data)
    md5, body, extras = unpack(delivery.data)
    system = _system_attributes(delivery, extras, selection) if selection.system else {}
    if selection.cause:
        cause = shown_cause(delivery.death, delivery.dead_letter_source_arn)
        if cause is not None:
            system[CAUSE_ATTRIBUTE] = cause
    chosen = _chosen_attributes(extras.attributes, selection) if extras.attributes else None
    return Message(
        delivery.message_id,
        delivery.receipt_handle,
        md5,
        body,
        system or None,
        md5_of_attributes(chosen) if chosen else None,
        {n: _received(t, v) for n, (t, v) in chosen.items()} if chosen else None,
    )


def _system_attributes(delivery: Delivery, extras: Extras, selection: Selection) -> dict[str, str]:
    source = delivery.dead_letter_source_arn
    values = {
        "SenderId": extras.sender,
        "SentTimestamp": str(delivery.sent_at_ms),
        "ApproximateReceiveCount": str(delivery.receive_count),
        "ApproximateFirstReceiveTimestamp": str(delivery.first_received_at_ms),
        "SequenceNumber": delivery.sequence_number,
        "MessageDeduplicationId": _shown_deduplication_id(delivery, extras),
        "MessageGroupId": extras.group_id,
        TRACE_HEADER: extras.trace_header,
        "DeadLetterQueueSourceArn": None if source is None else shown_arn(source),
    }
    return {name: value for name in selection.system if (value := values[name]) is not None}


def _shown_deduplication_id(delivery: Delivery, extras: Extras) -> str | None:
    """The deduplication id; AWS shows a dead letter's message id, as the old id may be sent
    again."""
    if extras.deduplication_id is not None and delivery.dead_letter_source_arn is not None:
        return delivery.message_id
    return extras.deduplication_id


def _chosen_attributes(attributes: Attributes, selection: Selection) -> Attributes:
    if selection.everything:
        return attributes
    return {
        name: attribute
        for name, attribute in attributes.items()
        if name in selection.names or name.startswith(selection.prefixes)
    }


def _received(data_type: str, value: bytes) -> ReceivedAttributeValue:
    if data_type.startswith("Binary"):
        return ReceivedAttributeValue(binary_value=value, data_type=data_type)
    return ReceivedAttributeValue(string_value=value.decode(), data_type=data_type)
