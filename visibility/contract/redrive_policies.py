"""RedrivePolicy and RedriveAllowPolicy: parsing, checks, and their compact form.

Pure. Policies are stored and shown in one compact form, with a number as maxReceiveCount: AWS
returns it whatever form was given. Versions before 0.2 stored the text as given, so it is put into
this form before it is shown or compared.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from auth.conditions import in_one_partition
from visibility.contract import limits
from visibility.contract.errors import InvalidAttributeValue, InvalidParameterValue
from visibility.contract.model import RedrivePolicy
from visibility.contract.naming import parse_arn

_DIGITS_MAX = 10  # characters of a count: enough for every range, and cheap for int()


def json_object(text: str) -> dict[str, object] | None:
    """The JSON object in the text, or None if it holds anything else."""
    try:
        value: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def redrive_refusal(text: str, reason: str) -> InvalidParameterValue:
    """The refusal of an invalid RedrivePolicy by CreateQueue and SetQueueAttributes."""
    return InvalidParameterValue(
        f"Value {text} for parameter RedrivePolicy is invalid. Reason: {reason}"
    )


def compact_redrive_policy(policy: RedrivePolicy) -> str:
    """The one form in which a redrive policy is stored and shown."""
    return _compact(
        {
            "deadLetterTargetArn": policy.dead_letter_target_arn,
            "maxReceiveCount": policy.max_receive_count,
        }
    )


def _compact(policy: dict[str, object]) -> str:
    return msgspec.json.encode(policy).decode()


def read_redrive_policy(text: str) -> RedrivePolicy:
    """Parse a policy, whose count may be a number or a string. Raises InvalidParameterValue."""
    policy = json_object(text)
    if policy is None:
        raise InvalidParameterValue(
            "Invalid value for the parameter RedrivePolicy. "
            "Reason: Redrive policy is not a valid JSON map."
        )
    arn, given = policy.get("deadLetterTargetArn"), policy.get("maxReceiveCount")
    count = _receive_count(given)
    if "maxReceiveCount" not in policy:
        reason = "Redrive policy does not contain mandatory attribute: maxReceiveCount."
    elif "deadLetterTargetArn" not in policy:
        reason = "Redrive policy does not contain mandatory attribute: deadLetterTargetArn."
    elif count is None:
        reason = (
            f"Invalid value for maxReceiveCount: {given}, valid values are from "
            f"{limits.MAX_RECEIVE_COUNT.low} to {limits.MAX_RECEIVE_COUNT.high} both inclusive."
        )
    elif not isinstance(arn, str) or not arn.startswith("arn:"):
        reason = "Invalid value for deadLetterTargetArn."
    elif parse_arn(arn) is None:
        reason = "Only SQS queues are valid resources for deadLetterTargetArn."
    elif len(policy) > 2:
        reason = "Only following attributes are supported: [maxReceiveCount, deadLetterTargetArn]."
    else:
        return RedrivePolicy(arn, count)
    raise redrive_refusal(text, reason)


def meant_redrive_policy(text: str) -> RedrivePolicy:
    """The same, with the target's ARN as queues have it, in whatever partition it was given."""
    policy = read_redrive_policy(text)
    return RedrivePolicy(in_one_partition(policy.dead_letter_target_arn), policy.max_receive_count)


def _receive_count(value: object) -> int | None:
    """A count within AWS's range from a JSON number or a string of digits, else None."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    digits = str(value)[: _DIGITS_MAX + 1]
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX):
        return None
    count, bounds = int(digits), limits.MAX_RECEIVE_COUNT
    return count if bounds.low <= count <= bounds.high else None


def checked_redrive_allow_policy(text: str) -> str:
    """A redrive allow policy in its stored form.

    Raises InvalidAttributeValue, InvalidParameterValue.
    """
    policy = json_object(text) or {}
    permission, arns = policy.get("redrivePermission"), policy.get("sourceQueueArns")
    most = limits.REDRIVE_SOURCE_QUEUE_ARNS_MAX
    if (
        permission not in ("allowAll", "denyAll", "byQueue")
        or not policy.keys() <= {"redrivePermission", "sourceQueueArns"}
        or not isinstance(arns, list | None)
        or not all(isinstance(arn, str) and parse_arn(arn) for arn in (arns or [])[:most])
    ):
        raise InvalidAttributeValue(
            "Invalid value for the parameter RedriveAllowPolicy. Reason: Amazon SQS can't create "
            "the redrive allow policy, as it's in an unsupported format."
        )
    reason = None
    if arns and permission != "byQueue":
        reason = (
            "To specify one or more source queue ARNs, you must set redrivePermission to byQueue."
        )
    elif permission == "byQueue" and not arns:
        reason = (
            "When you specify the byQueue permission type, you must also specify "
            "one or more sourceQueueArns values."
        )
    elif arns and len(arns) > most:
        reason = f"The maximum number of source queue ARNs you can specify is {most}."
    if reason:
        raise InvalidParameterValue(
            f"Value {text} for parameter RedriveAllowPolicy is invalid. "
            f"Reason: Amazon SQS can't create the redrive allow policy. {reason}"
        )
    return compact_redrive_allow_policy(policy)


def compact_redrive_allow_policy(policy: dict[str, object]) -> str:
    """The form in which a redrive allow policy is stored and shown; AWS does not keep a null."""
    names = ("redrivePermission", "sourceQueueArns")
    return _compact({name: policy[name] for name in names if policy.get(name) is not None})


def redrive_allowed(target_attributes: Mapping[str, str], source_arn: str) -> bool:
    """True if a dead-letter queue lets this queue name it; without RedriveAllowPolicy, all may."""
    text = target_attributes.get("RedriveAllowPolicy")
    policy = json_object(text) if text else None
    if policy is None or policy["redrivePermission"] == "allowAll":
        return True
    arns = policy.get("sourceQueueArns")
    return (
        policy["redrivePermission"] == "byQueue"
        and isinstance(arns, list)
        and in_one_partition(source_arn) in map(in_one_partition, arns)
    )
