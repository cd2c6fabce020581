"""The syntax of names, ids and texts; conversion between a queue's name, URL and ARN.

Pure text; knows neither the existing queues nor this server's address. A QueueUrl is resolved by
its path alone, since clients use other host names and ports than the server does (proxies,
containers, port forwarding).
Source: SQS API reference (names), tests validated against AWS (bare names, the rule of the path).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

from visibility.contract import limits
from visibility.contract.errors import InvalidAddress, InvalidParameterValue, QueueDoesNotExist
from visibility.contract.tags import check_own_tags

FIFO_SUFFIX = ".fifo"

SYSTEM_ATTRIBUTE_NAMES = (
    "SenderId",
    "SentTimestamp",
    "ApproximateReceiveCount",
    "ApproximateFirstReceiveTimestamp",
    "SequenceNumber",
    "MessageDeduplicationId",
    "MessageGroupId",
    "AWSTraceHeader",
    "DeadLetterQueueSourceArn",
)
"""Names that a receive may request besides `All`, in the order of the service model."""

_MAX = limits.QUEUE_NAME_LENGTH_MAX
_STANDARD_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{_MAX}}}")
_FIFO_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{_MAX - len(FIFO_SUFFIX)}}}\.fifo")
_ACCOUNT = re.compile(rf"[0-9]{{{limits.ACCOUNT_ID_DIGITS}}}")
_ATTRIBUTE_NAME = re.compile(r"[A-Za-zÀ-ÖØ-öø-ſ0-9_.-]+")
"""AWS takes accented Latin letters, too, which its documents do not say."""
_NUMBER = re.compile(r"[+-]?(?:([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))(?:[eE]([+-]?[0-9]+))?")
_TOKEN = re.compile(rf"[!-~]{{1,{limits.TOKEN_LENGTH_MAX}}}")  # no space
_LABEL = re.compile(rf"[A-Za-z0-9_-]{{1,{limits.LABEL_LENGTH_MAX}}}")
AWS = "aws"
_PARTITIONS = {
    "cn": "aws-cn",
    "us-gov": "aws-us-gov",
    "us-iso": "aws-iso",
    "us-isob": "aws-iso-b",
    "eu-isoe": "aws-iso-e",
    "us-isof": "aws-iso-f",
    "eusc-de": "aws-eusc",
}
"""The partition of regions that are not in `aws`, by what stands before the direction."""
_ARN = re.compile(r"arn:aws[a-z-]*:sqs:([a-z0-9-]+):([0-9]+):([A-Za-z0-9_-]+(?:\.fifo)?)")

_STANDARD_WORDING = (
    f"Can only include alphanumeric characters, hyphens, or underscores. 1 to {_MAX} in length"
)
_FIFO_WORDING = (
    "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, "
    f"must end with {FIFO_SUFFIX} suffix and be 1 to {_MAX} in length."
)
_LEGAL_BYTES = b"\t\n\r" + bytes(range(0x20, 0x100))
_FORBIDDEN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_UFFFE, _UFFFF = b"\xef\xbf\xbe", b"\xef\xbf\xbf"  # in UTF-8; found nowhere else in it
_EXPONENT_LENGTH_MAX = (
    10  # characters; the zeros of the largest message make up for a million, 8 with its sign
)
_URL_LENGTH_MAX = 2_048  # characters; ours
_REMEMBERED_URLS = 4_096  # addresses; a few MB at most with the next bound
_REMEMBERED_URL_LENGTH_MAX = 512  # characters; a longer one is resolved each time and not kept


class QueueAddress(NamedTuple):
    """The parts of a QueueUrl; `account` None: a bare name, of a queue in the caller's own
    account."""

    account: str | None
    name: str


class QueueArn(NamedTuple):
    """The parts of a queue's ARN that differ between queues."""

    region: str
    account: str
    name: str


def is_fifo_name(name: str) -> bool:
    """True for a name that marks FIFO; an existing queue with such a name is FIFO."""
    return name.endswith(FIFO_SUFFIX)


def is_account(text: str) -> bool:
    """True for an account id: twelve ASCII digits."""
    return _ACCOUNT.fullmatch(text) is not None


def check_queue_name(name: str, *, fifo: bool) -> None:
    """Refuse a name CreateQueue cannot give to a queue of this type.

    Raises InvalidParameterValue, for a `.fifo` name of a standard queue too.
    """
    if fifo:
        if _FIFO_NAME.fullmatch(name) is None:
            raise InvalidParameterValue(_FIFO_WORDING)
    elif _STANDARD_NAME.fullmatch(name) is None:
        raise InvalidParameterValue(_STANDARD_WORDING)


def queue_address(queue_url: str) -> QueueAddress:
    """The account and name in a QueueUrl's last two path parts, or a bare name.

    Scheme, host, query string and the parts before the last two (a region) do not matter.
    Raises InvalidAddress when the part before the name is not an account: AWS gives this answer to
    a malformed address, and no client that got its URL from SQS sends one. Raises QueueDoesNotExist
    for an address without a path, and for a name that no queue can have: to the client such a queue
    simply does not exist. Neither does one with a longer address than a client can have been given.
    """
    if len(queue_url) > _URL_LENGTH_MAX:
        raise QueueDoesNotExist()
    if len(queue_url) > _REMEMBERED_URL_LENGTH_MAX:
        return _resolve(queue_url)
    return _remembered(queue_url)


def _resolve(queue_url: str) -> QueueAddress:
    path = queue_url.partition("#")[0].partition("?")[0]
    _, scheme, rest = path.partition("://")
    if scheme:
        path = rest.partition("/")[2]
    parts = [part for part in path.split("/") if part]
    if not parts:
        raise QueueDoesNotExist()
    name = unquote(parts[-1])
    account = unquote(parts[-2]) if len(parts) > 1 else None
    if account is not None and not is_account(account):
        raise InvalidAddress(f"The address {queue_url} is not valid for this endpoint.")
    if _STANDARD_NAME.fullmatch(name) is None and _FIFO_NAME.fullmatch(name) is None:
        raise QueueDoesNotExist()
    return QueueAddress(account, name)


_remembered = lru_cache(_REMEMBERED_URLS)(_resolve)


def queue_url(base_url: str, account: str, name: str) -> str:
    """The URL of a queue for clients; `base_url` is the one the client used, final slash or not."""
    return f"{base_url.rstrip('/')}/{account}/{name}"


def parse_arn(arn: str) -> QueueArn | None:
    """The parts of a queue's ARN in any AWS partition; None for any other text.

    None and not an error, since each action refuses a bad ARN in its own words.
    """
    found = _ARN.fullmatch(arn)
    if found is None:
        return None
    return QueueArn(found[1], found[2], found[3])


def shown_arn(arn: str) -> str:
    """The ARN of a queue as clients see it: in the partition that AWS has its region in."""
    partition = partition_of(arn.partition(":sqs:")[2].partition(":")[0])
    return arn if partition == AWS else arn.replace(f":{AWS}:", f":{partition}:", 1)


@lru_cache(maxsize=256)
def partition_of(region: str) -> str:
    """AWS's partition of a region; ARNs are stored in the partition AWS, whatever the region."""
    return _PARTITIONS.get(region.rsplit("-", 2)[0], AWS)


def check_message_attribute_name(name: str) -> None:
    """Refuse a name no message attribute may have; a receive may ask for any name."""
    subject = "Message (user) attribute name"
    if not name:
        reason = "The request must contain non-empty message (user) attribute names."
    elif len(name) > limits.MESSAGE_ATTRIBUTE_NAME_LENGTH_MAX:
        reason = f"{subject} must be shorter than {limits.MESSAGE_ATTRIBUTE_NAME_LENGTH_MAX} bytes."
    elif name.lower().startswith(("aws.", "amazon.")):
        reason = (
            "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. "
            "These strings are reserved for internal use."
        )
    elif name.startswith("."):
        reason = f"{subject} must not begin with character '.'."
    elif name.endswith("."):
        reason = f"{subject} must not end with character '.'."
    elif ".." in name:
        reason = f"{subject} must not have successive '.' characters."
    elif _ATTRIBUTE_NAME.fullmatch(name) is None:
        reason = f"Invalid {subject.lower()} '{name}'."
    else:
        return
    raise InvalidParameterValue(reason)


def is_number(text: str) -> bool:
    """True if a Number attribute may have this value. Leading and trailing zeros are not counted.

    Takes time linear in the length, whatever the exponent.
    """
    found = _NUMBER.fullmatch(text)
    if found is None:
        return False
    whole, fraction = found[1] or "", found[2] or found[3] or ""
    digits = (whole + fraction).lstrip("0")
    significant = digits.rstrip("0")
    sign_and_exponent = found[4] or "0"
    if not significant:
        return True
    if len(significant) > limits.NUMBER_DIGITS_MAX or len(sign_and_exponent) > _EXPONENT_LENGTH_MAX:
        return False
    magnitude = len(digits) - len(fraction) - 1 + int(sign_and_exponent)
    low, high = limits.NUMBER_MAGNITUDE.low, limits.NUMBER_MAGNITUDE.high
    return low <= magnitude < high or (magnitude == high and significant == "1")


def check_token(name: str, value: str) -> None:
    """Refuse a group, deduplication or attempt id outside AWS's alphabet; `name` is the member."""
    if _TOKEN.fullmatch(value) is None:
        raise InvalidParameterValue(
            f"Value {value} for parameter {name} is invalid. Reason: {name} can only include "
            f"alphanumeric and punctuation characters. 1 to {limits.TOKEN_LENGTH_MAX} in length."
        )


def check_label(label: str | None) -> None:
    """Refuse a label no statement of a policy may have."""
    if label is None or _LABEL.fullmatch(label) is None:
        raise InvalidParameterValue(
            f"Value {label} for parameter Label is invalid. Reason: Can only include "
            "alphanumeric characters, hyphens, or underscores. "
            f"1 to {limits.LABEL_LENGTH_MAX} in length."
        )


def check_tag_key(key: str) -> None:
    """Refuse a key that no tag can have."""
    if not 1 <= len(key) <= limits.TAG_KEY_LENGTH_MAX:
        raise InvalidParameterValue(
            f"Tag keys must be between 1 and {limits.TAG_KEY_LENGTH_MAX} characters in length."
        )


def check_tag_count(queue_name: str, tags: Collection[str]) -> None:
    """Refuse more tags than a queue can have."""
    if len(tags) > limits.TAGS_MAX:
        raise InvalidParameterValue(f"Too many tags added for queue {queue_name}.")


def check_tags(tags: Mapping[str, str]) -> None:
    """Refuse tags outside AWS's bounds, AWS's own (`aws:`), and those that `check_own_tags`
    refuses."""
    for key, value in tags.items():
        check_tag_key(key)
        if checked_utf8(key + value) is None:
            raise InvalidParameterValue("Tag keys and values must be valid text.")
        if key[:4].lower() == "aws:":
            raise InvalidParameterValue("Tag keys beginning with aws: are reserved for system use.")
        if len(value) > limits.TAG_VALUE_LENGTH_MAX:
            raise InvalidParameterValue(
                f"Tag values cannot be longer than {limits.TAG_VALUE_LENGTH_MAX} characters."
            )
    check_own_tags(tags)


def is_plain(text: str) -> bool:
    """True for printable ASCII."""
    return text.isascii() and text.isprintable()


def checked_utf8(text: str) -> bytes | None:
    """The text in UTF-8, or None if it holds a character that XML 1.0 does not allow."""
    try:
        encoded = text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return None
    if encoded.translate(None, _LEGAL_BYTES):
        return None
    if len(encoded) != len(text) and (_UFFFE in encoded or _UFFFF in encoded):
        return None
    return encoded


def first_forbidden(text: str) -> str:
    """The first character that XML 1.0 does not allow, in a text of which `checked_utf8` made
    None."""
    found = _FORBIDDEN.search(text)
    assert found is not None
    return found[0]
