"""The policy that AddPermission and RemovePermission write: policy text in, policy text out.

Pure. `validate.py` checks the grants; nothing here decides on access.
Source: policies recorded from AWS.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from visibility.contract.errors import InvalidParameterValue

_VERSION = "2008-10-17"


def with_permission(
    policy: str | None,
    queue_arn: str,
    label: str,
    accounts: Sequence[str],
    actions: Sequence[str],
) -> str:
    """The policy with one more statement at the end; its other members do not change.

    `policy` None: the queue has none. `accounts` are 12-digit ids, `actions` are names without
    `SQS:`; neither is empty.
    Raises InvalidParameterValue for a label in use.
    """
    document: dict[str, Any] = {"Version": _VERSION, "Id": f"{queue_arn}/SQSDefaultPolicy"}
    if policy is not None:
        document = _decode(policy)
    statements = _statements(document)
    if any(_label(statement) == label for statement in statements):
        raise _refusal(label, "Already exists.")
    partition = queue_arn.split(":", 2)[1]
    roots = [f"arn:{partition}:iam::{id_}:root" for id_ in accounts]
    granted = {
        "Sid": label,
        "Effect": "Allow",
        "Principal": {"AWS": _one_or_list(roots)},
        "Action": _one_or_list([f"SQS:{action}" for action in actions]),
        "Resource": queue_arn,
    }
    return _encode(document | {"Statement": [*statements, granted]})


def without_permission(policy: str | None, label: str) -> str | None:
    """The policy without the statements of that label; None if none remain.

    Raises InvalidParameterValue if there is no such label, or no policy.
    """
    document = {} if policy is None else _decode(policy)
    statements = _statements(document)
    kept = [statement for statement in statements if _label(statement) != label]
    if len(kept) == len(statements):
        raise _refusal(label, "can't find label.")
    return _encode(document | {"Statement": kept}) if kept else None


def _statements(document: dict[str, Any]) -> list[Any]:
    """The statements; a policy set by a client may have a single one instead of a list."""
    found = document.get("Statement")
    if found is None:
        return []
    return found if isinstance(found, list) else [found]


def _label(statement: object) -> object:
    return statement.get("Sid") if isinstance(statement, dict) else None


def _one_or_list(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values


def _refusal(label: str, reason: str) -> InvalidParameterValue:
    return InvalidParameterValue(f"Value {label} for parameter Label is invalid. Reason: {reason}")


def _decode(policy: str) -> dict[str, Any]:
    """Parse a policy that was a JSON object when it was set."""
    document = msgspec.json.decode(policy)
    assert isinstance(document, dict)
    return document


def _encode(document: dict[str, Any]) -> str:
    return msgspec.json.encode(document).decode()
