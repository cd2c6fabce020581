"""The attributes of a queue: one table; rules to create, change, compare and show them.

Pure. Attributes are stored complete: every settable one with its default, text as
GetQueueAttributes shows it; optional ones (policies, KMS) are absent when they are not set. The
catalog checks that a dead-letter queue exists and allows its source
(`redrive_policies.redrive_allowed`).
Source: SQS API reference; wording recorded from AWS where a test says so, else the common wording
of emulators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from auth.envelope import BUILT_IN_KEY
from visibility.contract import limits
from visibility.contract.errors import (
    InvalidAttributeName,
    InvalidAttributeValue,
    InvalidParameterValue,
)
from visibility.contract.model import QueueCounters, QueueDefinition, QueueSettings
from visibility.contract.naming import (
    check_queue_name,
    check_tag_count,
    check_tags,
    checked_utf8,
    is_fifo_name,
    shown_arn,
)
from visibility.contract.queue_policy import check_policy, compact_policy
from visibility.contract.redrive_policies import (
    checked_redrive_allow_policy,
    compact_redrive_allow_policy,
    compact_redrive_policy,
    json_object,
    meant_redrive_policy,
    read_redrive_policy,
    redrive_refusal,
)
from visibility.contract.tags import check_together, joining_of, own_tags_of, taken_bounds

ALL = "All"


class Kind(Enum):
    """The syntax of an attribute's text."""

    INTEGER = "integer"  # decimal, within `bounds`
    BOOLEAN = "boolean"  # true or false in any case, kept lower-case
    CHOICE = "choice"  # one of `choices`
    TEXT = "text"  # anything; empty removes it
    POLICY = "policy"  # JSON object; empty removes it
    SHOWN = "shown"  # computed, cannot be set


class Attribute(NamedTuple):
    """One row of the table. `default` None: absent until set; `bounds` are for integers only.

    Of a policy `checked` is the text to store, `shown` the one to answer with, for those that are
    or were stored as they were given, and `meaning` is what is compared with another's; they raise
    the errors that refuse the text.
    """

    name: str
    kind: Kind
    default: str | None = None
    bounds: limits.Range | None = None
    choices: tuple[str, ...] = ()
    fifo_only: bool = False
    checked: Callable[[str], str] = str
    shown: Callable[[str], str] = str
    meaning: Callable[[str], object] = str


def _integer(name: str, bounds: limits.Range) -> Attribute:
    return Attribute(name, Kind.INTEGER, str(bounds.default), bounds)


def _choice(name: str, *choices: str) -> Attribute:
    return Attribute(name, Kind.CHOICE, choices[0], choices=choices, fifo_only=True)


def _checked_policy(text: str) -> str:
    check_policy(text)
    return text


def _meant_policy(text: str) -> object:
    return json_object(compact_policy(text))


def _compact_redrive_policy(text: str) -> str:
    return compact_redrive_policy(read_redrive_policy(text))


def _compact_redrive_allow_policy(text: str) -> str:
    return compact_redrive_allow_policy(json_object(text) or {})


ATTRIBUTES: dict[str, Attribute] = {
    row.name: row
    for row in (
        Attribute(
            "Policy",
            Kind.POLICY,
            checked=_checked_policy,
            shown=compact_policy,
            meaning=_meant_policy,
        ),
        _integer("VisibilityTimeout", limits.VISIBILITY_TIMEOUT),
        _integer("MaximumMessageSize", limits.MAXIMUM_MESSAGE_SIZE),
        _integer("MessageRetentionPeriod", limits.MESSAGE_RETENTION_PERIOD),
        Attribute("ApproximateNumberOfMessages", Kind.SHOWN),
        Attribute("ApproximateNumberOfMessagesNotVisible", Kind.SHOWN),
        Attribute("CreatedTimestamp", Kind.SHOWN),
        Attribute("LastModifiedTimestamp", Kind.SHOWN),
        Attribute("QueueArn", Kind.SHOWN),
        Attribute("ApproximateNumberOfMessagesDelayed", Kind.SHOWN),
        _integer("DelaySeconds", limits.DELAY_SECONDS),
        _integer("ReceiveMessageWaitTimeSeconds", limits.RECEIVE_MESSAGE_WAIT_TIME_SECONDS),
        Attribute(
            "RedrivePolicy",
            Kind.POLICY,
            checked=_compact_redrive_policy,
            shown=_compact_redrive_policy,
            meaning=meant_redrive_policy,
        ),
        Attribute("FifoQueue", Kind.BOOLEAN, fifo_only=True),
        Attribute("ContentBasedDeduplication", Kind.BOOLEAN, "false", fifo_only=True),
        Attribute("KmsMasterKeyId", Kind.TEXT),
        _integer("KmsDataKeyReusePeriodSeconds", limits.KMS_DATA_KEY_REUSE_PERIOD_SECONDS),
        _choice("DeduplicationScope", "queue", "messageGroup"),
        _choice("FifoThroughputLimit", "perQueue", "perMessageGroupId"),
        Attribute(
            "RedriveAllowPolicy",
            Kind.POLICY,
            checked=checked_redrive_allow_policy,
            shown=_compact_redrive_allow_policy,
            meaning=json_object,
        ),
        Attribute("SqsManagedSseEnabled", Kind.BOOLEAN, "true"),
    )
}

_COUNTERS = {name for name in ATTRIBUTES if name.startswith("Approximate")}
_TEXT_LENGTH_MAX = 2_048  # characters; as AWS bounds the id of a key
_DIGITS_MAX = 10  # characters of a number: enough for every range, and cheap for int()


def initial_attributes(name: str, given: Mapping[str, str]) -> dict[str, str]:
    """The complete attributes of a queue to create.

    Raises InvalidParameterValue (name, RedrivePolicy), InvalidAttributeName (unknown, not for this
    type of queue, or two kinds of encryption) and InvalidAttributeValue.
    """
    fifo = _boolean("FifoQueue", given.get("FifoQueue", "false")) == "true"
    check_queue_name(name, fifo=fifo)
    defaults = {
        row.name: row.default
        for row in ATTRIBUTES.values()
        if row.default is not None and (fifo or not row.fifo_only)
    }
    return _merged(defaults, given, fifo=fifo)


def changed_attributes(current: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """The complete attributes after SetQueueAttributes; `current` is not modified.

    Raises the errors of `initial_attributes`, and InvalidAttributeValue for another type of queue.
    """
    fifo = current.get("FifoQueue") == "true"
    if fifo and _boolean("FifoQueue", given.get("FifoQueue", "true")) == "false":
        raise _invalid("FifoQueue", " Reason: Modifying queue type is not supported.")
    return _merged(current, given, fifo=fifo)


def _merged(current: Mapping[str, str], given: Mapping[str, str], *, fifo: bool) -> dict[str, str]:
    merged = dict(current)
    for name, text in given.items():
        value = _normal(_row(name, fifo=fifo), text)
        if value:
            merged[name] = value
        else:
            merged.pop(name, None)
    _settle_encryption(merged, given)
    redrive = given.get("RedrivePolicy")
    if redrive and is_fifo_name(read_redrive_policy(redrive).dead_letter_target_arn) is not fifo:
        # AWS ends this text with two full stops.
        raise redrive_refusal(
            redrive, "Dead-letter queue must be same type of queue as the source.."
        )
    if merged.get("FifoThroughputLimit") == "perMessageGroupId":
        if merged["DeduplicationScope"] != "messageGroup":
            raise InvalidParameterValue(
                "The perMessageGroupId value is allowed only when the value for "
                "DeduplicationScope is messageGroup"
            )
    return merged


def _row(name: str, *, fifo: bool) -> Attribute:
    row = ATTRIBUTES.get(name)
    if row is None or row.kind is Kind.SHOWN:
        raise _unknown(name)
    if row.fifo_only and not fifo:
        if row.kind is Kind.CHOICE:
            raise InvalidAttributeName(
                f"You can specify the {name} only when FifoQueue is set to true."
            )
        raise _unknown(name)
    return row


def _settle_encryption(merged: dict[str, str], given: Mapping[str, str]) -> None:
    """Apply AWS's rules for the two kinds of encryption: at most one, and the key decides the rest.

    A key turns SqsManagedSseEnabled off, and removing it does not turn that on again (recorded).
    The reuse period is shown with a key, or alone when it is not the default.
    """
    managed = given.get("SqsManagedSseEnabled", "").lower() == "true"
    if managed and given.get("KmsMasterKeyId"):
        raise InvalidAttributeName(
            "You can use one type of server-side encryption (SSE) at one time. "
            "You can either enable KMS SSE or SQS SSE."
        )
    if managed:
        merged.pop("KmsMasterKeyId", None)
        merged.pop("KmsDataKeyReusePeriodSeconds", None)
    period = str(limits.KMS_DATA_KEY_REUSE_PERIOD_SECONDS.default)
    if "KmsMasterKeyId" in merged:
        merged["SqsManagedSseEnabled"] = "false"
        merged.setdefault("KmsDataKeyReusePeriodSeconds", period)
    elif merged.get("KmsDataKeyReusePeriodSeconds") == period:
        del merged["KmsDataKeyReusePeriodSeconds"]


def _unknown(name: str) -> InvalidAttributeName:
    return InvalidAttributeName(f"Unknown Attribute {name}.")


def _invalid(name: str, reason: str = "") -> InvalidAttributeValue:
    return InvalidAttributeValue(f"Invalid value for the parameter {name}.{reason}")


def _normal(row: Attribute, text: str) -> str:
    """The value in its stored form; empty when the attribute is to be removed."""
    if row.kind is Kind.INTEGER:
        return _number(row, text)
    if row.kind is Kind.BOOLEAN:
        return _boolean(row.name, text)
    if row.kind is Kind.POLICY and text:
        if len(text) > limits.POLICY_BYTES_MAX and row.name != "Policy":  # that has its own refusal
            raise _invalid(row.name)
        return row.checked(text)
    if len(text) > _TEXT_LENGTH_MAX or checked_utf8(text) is None:
        raise _invalid(row.name)
    if row.kind is Kind.CHOICE and text not in row.choices:
        raise _invalid(row.name)
    return text


def _number(row: Attribute, text: str) -> str:
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        raise _invalid(row.name)
    assert row.bounds is not None
    if not row.bounds.low <= int(text) <= row.bounds.high:
        raise _invalid(row.name)
    return str(int(text))


def _boolean(name: str, text: str) -> str:
    value = text.lower()
    if value not in ("true", "false"):
        raise _invalid(name)
    return value


def conflicting_attribute(current: Mapping[str, str], given: Mapping[str, str]) -> str | None:
    """The first given attribute that differs from an existing queue's present value, or None.

    `given` has passed `initial_attributes`. Numbers, booleans and JSON compare by meaning.
    """
    for name, text in given.items():
        row = ATTRIBUTES[name]
        present = current.get(name, row.default or "")
        value = _normal(row, text)
        if value != present and _comparable(row, value) != _comparable(row, present):
            return name
    return None


def _comparable(row: Attribute, value: str) -> object:
    return row.meaning(value) if value else value


def settings_of(
    attributes: Mapping[str, str], tags: Mapping[str, str] | None = None
) -> QueueSettings:
    """The settings that decisions need, from complete attributes and tags, in our units."""
    redrive, own_tags = attributes.get("RedrivePolicy"), own_tags_of(tags or {})
    managed = BUILT_IN_KEY if attributes.get("SqsManagedSseEnabled") == "true" else None
    reuse_s = attributes.get("KmsDataKeyReusePeriodSeconds")
    return QueueSettings(
        visibility_timeout_ms=int(attributes["VisibilityTimeout"]) * 1000,
        delay_ms=int(attributes["DelaySeconds"]) * 1000,
        retention_ms=int(attributes["MessageRetentionPeriod"]) * 1000,
        wait_ms=int(attributes["ReceiveMessageWaitTimeSeconds"]) * 1000,
        maximum_message_size=int(attributes["MaximumMessageSize"]),
        fifo=attributes.get("FifoQueue") == "true",
        redrive_policy=None if redrive is None else meant_redrive_policy(redrive),
        content_based_deduplication=attributes.get("ContentBasedDeduplication") == "true",
        encryption=attributes.get("KmsMasterKeyId") or managed,
        data_key_reuse_s=int(reuse_s or limits.KMS_DATA_KEY_REUSE_PERIOD_SECONDS.default or 0),
        own_tags=own_tags,
        own_bounds=taken_bounds(own_tags),
        joining=joining_of(own_tags),
    )


def needs_counters(names: Iterable[str] | None) -> bool:
    """True if an answer with these names needs the shard's counters."""
    return names is not None and any(name == ALL or name in _COUNTERS for name in names)


def shown_attributes(
    queue: QueueDefinition, names: Sequence[str] | None, counters: QueueCounters
) -> dict[str, str] | None:
    """The answer of GetQueueAttributes, in the table's order; None if no requested attribute is
    set.

    `counters` may hold anything where `needs_counters` is false. Raises InvalidAttributeName.
    """
    asked = set(names or ())
    for name in names or ():
        if name not in ATTRIBUTES and name != ALL:
            raise _unknown(name)
    values = queue.attributes | {
        "ApproximateNumberOfMessages": str(counters.visible),
        "ApproximateNumberOfMessagesNotVisible": str(counters.in_flight),
        "ApproximateNumberOfMessagesDelayed": str(counters.delayed),
        "CreatedTimestamp": str(queue.created_at_ms // 1000),
        "LastModifiedTimestamp": str(queue.modified_at_ms // 1000),
        "QueueArn": shown_arn(queue.arn),
    }
    everything = ALL in asked
    shown = {
        name: row.shown(values[name])
        for name, row in ATTRIBUTES.items()
        if name in values and (everything or name in asked)
    }
    return shown or None


def checked_tags(
    queue_name: str, current: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, str]:
    """A queue's tags after TagQueue, or at CreateQueue with no current ones.

    Raises InvalidParameterValue for a tag out of bounds, too many tags, and tags of this service
    that contradict each other.
    """
    check_tags(given)
    tags = {**current, **given}
    check_tag_count(queue_name, tags)
    check_together(tags, given, fifo=queue_name.endswith(".fifo"))
    return tags
