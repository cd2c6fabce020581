"""Policy documents in IAM's grammar, parsed once into the form that `policy.py` evaluates. Pure.

Patterns become regular expressions unless they contain a policy variable (`${aws:username}`,
Version 2012-10-17 only), which is filled in for each request. An ARN's wildcards stay within its
segments, and missing segments match anything.
Source: IAM's JSON policy element reference and grammar.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any

import msgspec

from auth.conditions import Condition, in_one_partition, read_conditions, tags_among
from auth.variables import Fill, expression, has_variable, names

_VERSIONS = ("2008-10-17", "2012-10-17")
_TEXT_MAX = 64 * 1024
"""Characters: more than AWS takes for any kind of policy."""
_ARN_SEGMENTS = 6
_TOP = {"Version", "Id", "Statement"}
_ELEMENTS = {
    "Sid", "Effect", "Principal", "NotPrincipal", "Action", "NotAction", "Resource", "NotResource",
    "Condition",
}  # fmt: skip
RENAMED = {"holdfast:QuarantineMessages": "holdfast:HoldMessages"}
"""New names of actions that policies may name by their old ones for one release."""
_GRANTED_BY_QUEUES = "sqs:"
"""An Allow of `*` could otherwise grant holdfast:LiftProtection and the like to the user who sets
the policy."""
_ACCOUNT = re.compile(r"[0-9]{12}|arn:aws[a-z-]*:iam::([0-9]{12}):root")


class PolicyRefused(Exception):
    """The text is not a policy; the message gives the reason in one line."""


class Kind(Enum):
    """The kind of thing that a policy belongs to."""

    QUEUE = "queue"
    """Grants SQS's actions on one queue, and denies any."""
    IDENTITY = "identity"
    """Grants access to a user."""
    KEY = "key"
    """Grants access to one encryption key."""


class Principals(msgspec.Struct, frozen=True):
    """The principals of a statement. `names` holds user ARNs and user ids."""

    everyone: bool = False
    accounts: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()


class Statement(msgspec.Struct, frozen=True):
    """One statement. In each pair `X` and `not_x`, `not_x` is True if X lists the exceptions."""

    label: str
    allows: bool
    actions: tuple[Callable[[str], object], ...]
    resources: tuple[Callable[[str, Fill], object], ...]
    conditions: tuple[Condition, ...] = ()
    principals: Principals | None = None
    not_principals: bool = False
    not_actions: bool = False
    not_resources: bool = False
    tags: tuple[str, ...] = ()
    """The tags that variables of the resources read."""
    about: str = ""
    """The beginning of the actions that it can be about, in lower case."""


class Policy(msgspec.Struct, frozen=True):
    """A policy that can be evaluated."""

    statements: tuple[Statement, ...]


def read_policy(text: str, kind: Kind) -> Policy:
    """Parse a policy in JSON. Raises PolicyRefused, also for text that is not JSON."""
    if len(text) > _TEXT_MAX:
        raise PolicyRefused(f"it is longer than {_TEXT_MAX} characters")
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise PolicyRefused("it is not JSON") from error
    _check_members(document, _TOP, "the policy")
    version = document.get("Version", _VERSIONS[0])
    if version not in _VERSIONS:
        raise PolicyRefused(f"Version must be one of {', '.join(_VERSIONS)}")
    statements = document.get("Statement", [])
    if isinstance(statements, dict):
        statements = [statements]
    if not isinstance(statements, list):
        raise PolicyRefused("Statement must be an object or a list of them")
    fills = version == _VERSIONS[1]
    return Policy(
        tuple(
            _statement(statement, f"statement {number}", kind, fills=fills)
            for number, statement in enumerate(statements, 1)
        )
    )


def check_policy_of_user(text: str) -> None:
    """Refuse a text that cannot become a user's policy: also one without a statement, which IAM
    refuses and older versions stored. Raises PolicyRefused."""
    if not read_policy(text, Kind.IDENTITY).statements:
        raise PolicyRefused("it has no Statement")


def _check_members(value: object, allowed: set[str], what: str) -> None:
    if not isinstance(value, dict):
        raise PolicyRefused(f"{what} must be an object")
    for name in value:
        if name not in allowed:
            raise PolicyRefused(f"{what} has an unknown element {name!r}")


def _statement(value: Any, place: str, kind: Kind, *, fills: bool) -> Statement:
    _check_members(value, _ELEMENTS, place)
    label = value.get("Sid") or place
    if not isinstance(label, str):
        raise PolicyRefused(f"{place}: Sid must be a string")
    if value.get("Effect") not in ("Allow", "Deny"):
        raise PolicyRefused(f"{place}: Effect must be Allow or Deny")
    actions, not_actions = _one_of(value, "Action", place)
    principals, not_principals = None, "NotPrincipal" in value
    if kind is not Kind.IDENTITY:
        if ("Principal" in value) == not_principals:
            raise PolicyRefused(f"{place}: needs either Principal or NotPrincipal")
        principals = _principals(value["NotPrincipal" if not_principals else "Principal"], place)
    elif "Principal" in value or not_principals:
        raise PolicyRefused(f"{place}: a user's policy names no Principal")
    resources, not_resources = ["*"], False
    if kind is Kind.IDENTITY or "Resource" in value or "NotResource" in value:
        resources, not_resources = _one_of(value, "Resource", place)
    try:
        conditions = read_conditions(value.get("Condition", {}), fills=fills)
    except ValueError as error:
        raise PolicyRefused(f"{place}: {error}") from error
    return Statement(
        label,
        value["Effect"] == "Allow",
        tuple(map(_action, actions)),
        tuple(_resource(resource, fills=fills) for resource in resources),
        conditions,
        principals,
        not_principals,
        not_actions,
        not_resources,
        tags_among(names(resources) if fills else ()),
        _GRANTED_BY_QUEUES if kind is Kind.QUEUE and value["Effect"] == "Allow" else "",
    )


def _one_of(value: Mapping[str, Any], name: str, place: str) -> tuple[list[str], bool]:
    """The texts of Action or Resource, or of its Not form; True in the second case."""
    negated = f"Not{name}"
    if (name in value) == (negated in value):
        raise PolicyRefused(f"{place}: needs either {name} or {negated}")
    found = value[name if name in value else negated]
    texts = found if isinstance(found, list) else [found]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise PolicyRefused(f"{place}: {name} must be a string or a list of strings")
    return texts, negated in value


def _principals(value: object, place: str) -> Principals:
    if value == "*":
        return Principals(everyone=True)
    if not isinstance(value, dict) or not value:
        raise PolicyRefused(f'{place}: Principal must be "*" or an object')
    everyone = False
    accounts: set[str] = set()
    names: set[str] = set()
    for kind, given in value.items():
        for name in given if isinstance(given, list) else [given]:
            if not isinstance(name, str):
                raise PolicyRefused(f"{place}: Principal must name strings")
            if kind not in ("AWS", "Service", "Federated", "CanonicalUser"):
                raise PolicyRefused(f"{place}: unknown kind of principal {kind!r}")
            if kind != "AWS":
                continue  # no request here comes from an AWS service or a federated user
            account = _ACCOUNT.fullmatch(name)
            if name == "*":
                everyone = True
            elif account is not None:
                accounts.add(account[1] or name)
            elif "*" in name or "?" in name:  # as in IAM, or a Deny would silently deny no one
                raise PolicyRefused(
                    f"{place}: Principal {name!r} has a wildcard; only * alone is one"
                )
            else:
                names.add(in_one_partition(name))
    return Principals(everyone, frozenset(accounts), frozenset(names))


def _action(name: str) -> Callable[[str], object]:
    """A matcher of actions; a pattern that fits an old name fits the new one, too."""
    matches = _pattern(name.lower())
    renamed = {new.lower() for old, new in RENAMED.items() if matches(old.lower())}
    return (lambda action: action in renamed or matches(action)) if renamed else matches


def _pattern(text: str) -> Callable[[str], object]:
    """A matcher for `*` and `?`."""
    return re.compile(expression(text), re.S).fullmatch


def _arn_pattern(text: str) -> Callable[[str], object]:
    if text == "*":
        return _pattern(text)
    segments = in_one_partition(text).split(":", _ARN_SEGMENTS - 1)
    *places, resource = [*segments, *["*"] * (_ARN_SEGMENTS - len(segments))]
    parts = [expression(place, "[^:]*") for place in places]
    return re.compile(":".join([*parts, expression(resource)]), re.S).fullmatch


_filled_arn_pattern = lru_cache(maxsize=1024)(_arn_pattern)


def _resource(text: str, *, fills: bool) -> Callable[[str, Fill], object]:
    """A matcher for ARNs that fills in the variables of a request."""
    if fills and has_variable(text):

        def matches_filled(arn: str, fill: Fill) -> object:
            filled = fill(text)
            return filled is not None and _filled_arn_pattern(filled)(arn)

        return matches_filled
    matches = _arn_pattern(text)
    return lambda arn, fill: matches(arn)
