"""Rules for a queue's Policy attribute. Pure; `auth.policy` evaluates it.

`check_policy` is for every policy, including those that AddPermission writes.
`check_policy_of_queue` is for one that a client sets: it may be stricter than the versions that
accepted the stored policies. Principals need not exist: other accounts' users are unknown here.
A Resource may be anything, also no ARN: `statements_without_effect` finds those that are not the
queue.
Source: a policy with the Resource `'$sqs_queue_arn'`, recorded from AWS; refusals of AWS as
reported by its users; the developer guide's limits of a policy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from auth.policy_document import Kind, Policy, PolicyRefused, Statement, read_policy
from visibility.contract import limits
from visibility.contract.actions import ACTIONS, POLICY_TOO_LARGE, UNKNOWN_ACTION
from visibility.contract.errors import InvalidAttributeValue, InvalidParameterValue, OverLimit
from visibility.contract.redrive_policies import json_object

_ACTIONS = tuple(f"sqs:{name.lower()}" for name in ACTIONS)
_ONE_ACTION = re.compile(r"sqs:\w+", re.ASCII | re.IGNORECASE)
_NAME = r"[\w+=,.@/-]+"
_PRINCIPALS = {
    "AWS": re.compile(
        rf"\*|[0-9]{{12}}|A(?:IDA|ROA)[A-Z0-9]+|arn:aws[a-z-]*:"
        rf"(?:iam::[0-9]{{12}}:(?:root|user/{_NAME}|role/{_NAME})"
        rf"|sts::[0-9]{{12}}:(?:assumed-role|federated-user)/{_NAME})",
        re.ASCII,
    ),
    "Service": re.compile(r"[a-z0-9-]+(?:\.[a-z0-9-]+)+"),
    "Federated": re.compile(
        rf"[a-z0-9-]+(?:\.[a-z0-9-]+)+"
        rf"|arn:aws[a-z-]*:iam::[0-9]{{12}}:(?:saml|oidc)-provider/{_NAME}",
        re.ASCII,
    ),
    "CanonicalUser": re.compile(r"[0-9a-f]{64}"),
}
_MEMBERS = ("Version", "Id", "Statement")
_ELEMENTS = (
    "Sid", "Effect", "Principal", "NotPrincipal", "Action", "NotAction", "Resource", "NotResource",
    "Condition",
)  # fmt: skip
"""Both in the order in which AWS answers with them."""
_VARIABLE = re.compile(r"\$\{[^}]*\}")


class _WhoseStatement(msgspec.Struct, rename="pascal"):
    """Whom a statement of a stored policy is about."""

    effect: str
    principal: Any = None
    not_principal: Any = None


class _Principals(msgspec.Struct, rename="pascal"):
    """The same of a whole policy."""

    statement: _WhoseStatement | list[_WhoseStatement] = []


def check_policy(text: str) -> Policy:
    """The policy in a text. Raises OverLimit, InvalidAttributeValue."""
    if len(text.encode(errors="replace")) > limits.POLICY_BYTES_MAX:
        raise OverLimit(POLICY_TOO_LARGE)
    try:
        return read_policy(text, Kind.QUEUE)
    except PolicyRefused as error:
        raise _invalid() from error


def check_policy_of_queue(text: str) -> None:
    """Refuse a policy without statements, or one about other services' actions.

    Raises OverLimit, InvalidAttributeValue, InvalidParameterValue.
    """
    policy = check_policy(text)
    if not policy.statements:
        raise _invalid()
    if len(policy.statements) > limits.POLICY_STATEMENTS_MAX:
        raise OverLimit(
            f"{len(policy.statements)} statements were found in the submitted policy, "
            f"max allowed is {limits.POLICY_STATEMENTS_MAX}"
        )
    given: Any = msgspec.json.decode(text)["Statement"]
    members_of_each = [given] if isinstance(given, dict) else given
    for statement, members in zip(policy.statements, members_of_each, strict=True):
        _check_statement(statement, members)


def compact_policy(text: str) -> str:
    """The form in which AWS shows a policy: without white space, its members in one order, and a
    list of one as its element. A text that is no policy is shown as it is."""
    document = json_object(text)
    if document is None:
        return text
    given = document.get("Statement", [])
    statements = map(_compact_statement, given if isinstance(given, list) else [given])
    shown = _in_order(document, _MEMBERS) | {"Statement": list(statements)}
    return msgspec.json.encode(shown).decode()


def _compact_statement(given: Any) -> Any:
    """One statement in that form. Conditions stay as given: of theirs AWS's form is not known."""
    if not isinstance(given, dict):
        return given
    return {
        name: value if name == "Condition" else _shortened(value)
        for name, value in _in_order(given, _ELEMENTS).items()
    }


def _in_order(members: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The members of these names in their order, then any others."""
    return {name: members[name] for name in names if name in members} | members


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shortened(given) for name, given in value.items()}
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def may_admit_everyone(text: str | None) -> bool:
    """False if no statement of a stored policy lets a request without a signature do anything;
    None is no policy.

    Reads no more than that needs: it is asked of every queue. True may be wrong, for actions,
    conditions and resources are not looked at.
    """
    if text is None:
        return False
    try:
        statements = msgspec.json.decode(text, type=_Principals).statement
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False  # a policy that cannot be read denies everything
    return any(map(_admits_everyone, statements if isinstance(statements, list) else [statements]))


def _admits_everyone(statement: _WhoseStatement) -> bool:
    """True for an Allow whose Principal names everyone, or whose NotPrincipal does not."""
    is_spared = statement.principal is None
    named = statement.not_principal if is_spared else statement.principal
    everyone = named == "*"
    if isinstance(named, dict):
        given = named.get("AWS")
        everyone = given == "*" or (isinstance(given, list) and "*" in given)
    return statement.effect == "Allow" and everyone is not is_spared


def statements_without_effect(text: str, queue_arn: str) -> list[str]:
    """Labels of the statements of a stored policy whose Resource is not the queue; none for a
    policy that cannot be read."""
    try:
        policy = read_policy(text, Kind.QUEUE)
    except PolicyRefused:
        return []
    return [
        statement.label
        for statement in policy.statements
        if statement.not_resources
        == any(matches(queue_arn, _anything) for matches in statement.resources)
    ]


def _check_statement(statement: Statement, members: dict[str, Any]) -> None:
    """Check one statement; `members` is its JSON."""
    if len(statement.actions) > limits.PERMISSION_ACTIONS_MAX:
        raise OverLimit(
            f"{len(statement.actions)} actions were found in a statement from the submitted "
            "policy, "
            f"max allowed is {limits.PERMISSION_ACTIONS_MAX}"
        )
    _check_names(members["Action" if "Action" in members else "NotAction"])
    if not (
        all(any(map(matches, _ACTIONS)) for matches in statement.actions)
        and not {"Resource", "NotResource"}.isdisjoint(members)
        and _are_well_formed(members["Principal" if "Principal" in members else "NotPrincipal"])
    ):
        raise _invalid()


def _check_names(actions: str | list[str]) -> None:
    """Refuse an action of SQS that cannot be granted: whoever may send may send batches."""
    for name in [actions] if isinstance(actions, str) else actions:
        lower = name.lower()
        if _ONE_ACTION.fullmatch(name) and (lower not in _ACTIONS or lower.endswith("batch")):
            raise InvalidParameterValue(
                f"Value {name} for parameter ActionName is invalid. Reason: {UNKNOWN_ACTION}"
            )


def _anything(text: str) -> str:
    """Replaces the variables of any request."""
    return _VARIABLE.sub("*", text)


def _are_well_formed(principals: str | dict[str, str | list[str]]) -> bool:
    if isinstance(principals, str):
        return principals == "*"
    return all(
        names and all(_PRINCIPALS[kind].fullmatch(name) for name in names)
        for kind, given in principals.items()
        for names in [given if isinstance(given, list) else [given]]
    )


def _invalid() -> InvalidAttributeValue:
    return InvalidAttributeValue("Invalid value for the parameter Policy.")
