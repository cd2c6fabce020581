"""TABLE: the condition operators of IAM. Pure.

A block holds if all its conditions hold; a condition holds if one of its values fits (for negated
operators: if none does). A condition on a key that the request lacks fails, unless its operator is
negated or ends in IfExists; with ForAllValues it holds and with ForAnyValue it fails, negated or
not.
Keys of tags are compared without case, and a queue may have both `Env` and `env`. IAM does not say
which of the two a condition on `aws:ResourceTag/Env` reads: here it fails in an Allow and holds in
a Deny, so that a second tag gives nobody more rights.
Source: IAM, "JSON policy elements: condition operators" and "multivalued context keys".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Any

import msgspec

from auth.variables import expression, fill, has_variable, names, plain

Keys = Mapping[str, tuple[str, ...]]
"""The request's values, by lower-case name of the condition key. A tag has several if its key was
given in several cases; an empty one is among them then."""
_PARTITION = re.compile(r"\Aarn:aws[a-z*?-]*:")
_Fits = Callable[[str, str], bool]
"""Takes (value from the request, value from the policy)."""


def _like(said: str, wanted: str) -> bool:
    return _text_pattern(wanted).fullmatch(said) is not None


def in_one_partition(arn: str) -> str:
    """The ARN as this service writes all, in the partition `aws`, so that two can be compared.

    Which of AWS's partitions (`aws-cn`, `aws-us-gov`) a resource is in follows from its region.
    """
    return _PARTITION.sub("arn:aws:", arn)


def _arn_like(said: str, wanted: str) -> bool:
    """Match each of the six segments separately."""
    segments, patterns = (in_one_partition(arn).split(":", 5) for arn in (said, wanted))
    return len(segments) == len(patterns) and all(map(_like, segments, patterns))


@lru_cache(maxsize=1024)
def _text_pattern(text: str) -> re.Pattern[str]:
    return re.compile(expression(text), re.S)


def _number(compare: Callable[[float, float], bool]) -> _Fits:
    return lambda said, wanted: compare(float(said), float(plain(wanted)))


def _date(compare: Callable[[float, float], bool]) -> _Fits:
    return lambda said, wanted: compare(_instant(said), _instant(plain(wanted)))


def _instant(text: str) -> float:
    """Epoch seconds from an ISO 8601 date or from a number of epoch seconds."""
    try:
        return float(text)
    except ValueError:
        parsed = datetime.fromisoformat(text)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def _in_network(said: str, wanted: str) -> bool:
    address = ip_address(said)
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address) in _network(plain(wanted))


_network = lru_cache(maxsize=1024)(lambda text: ip_network(text, strict=False))

_POSITIVE: dict[str, _Fits] = {
    "StringEquals": lambda said, wanted: said == plain(wanted),
    "StringEqualsIgnoreCase": lambda said, wanted: said.casefold() == plain(wanted).casefold(),
    "StringLike": _like,
    "NumericEquals": _number(lambda said, wanted: said == wanted),
    "NumericLessThan": _number(lambda said, wanted: said < wanted),
    "NumericLessThanEquals": _number(lambda said, wanted: said <= wanted),
    "NumericGreaterThan": _number(lambda said, wanted: said > wanted),
    "NumericGreaterThanEquals": _number(lambda said, wanted: said >= wanted),
    "DateEquals": _date(lambda said, wanted: said == wanted),
    "DateLessThan": _date(lambda said, wanted: said < wanted),
    "DateLessThanEquals": _date(lambda said, wanted: said <= wanted),
    "DateGreaterThan": _date(lambda said, wanted: said > wanted),
    "DateGreaterThanEquals": _date(lambda said, wanted: said >= wanted),
    "Bool": lambda said, wanted: said.lower() == plain(wanted).lower(),
    "BinaryEquals": lambda said, wanted: said == plain(wanted),
    "IpAddress": _in_network,
    "ArnEquals": _arn_like,
    "ArnLike": _arn_like,
}
_NEGATED = {
    "StringNotEquals": "StringEquals",
    "StringNotEqualsIgnoreCase": "StringEqualsIgnoreCase",
    "StringNotLike": "StringLike",
    "NumericNotEquals": "NumericEquals",
    "DateNotEquals": "DateEquals",
    "NotIpAddress": "IpAddress",
    "ArnNotEquals": "ArnEquals",
    "ArnNotLike": "ArnLike",
}
_CHECKED: dict[str, Callable[[str], object]] = {
    "Numeric": float,
    "Date": _instant,
    "IpAddress": lambda text: ip_network(text, strict=False),
}
"""Parsers that the values of these operators must pass when the policy is read."""
_TAGS = ("aws:principaltag/", "aws:requesttag/", "aws:resourcetag/")
_OPERATOR = re.compile(r"(?:(ForAllValues|ForAnyValue):)?([A-Za-z]+?)(IfExists)?")


def keys_by_name(said: Iterable[tuple[str, tuple[str, ...]]]) -> Keys:
    """The keys from pairs of a lower-case name and its values; what only has empty values is
    absent.

    IAM: a key's value that is an empty string resolves to no value.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name, values in said:
        found[name] = tuple(dict.fromkeys((*found.get(name, ()), *values)))
    return {name: values for name, values in found.items() if any(values)}


def tags_among(key_names: Iterable[str]) -> tuple[str, ...]:
    """Those of the condition keys that are tags."""
    return tuple(name for name in key_names if name.startswith(_TAGS))


def is_unclear(tags: tuple[str, ...], keys: Keys) -> bool:
    """True if the request has several values for one of these tags."""
    return any(len(keys.get(tag, ())) > 1 for tag in tags)


class Condition(msgspec.Struct, frozen=True):
    """One key of one operator.

    `key` is in lower case; `quantifier` is ForAllValues, ForAnyValue or empty.
    """

    fits: _Fits
    key: str
    values: tuple[str, ...]
    negated: bool = False
    if_exists: bool = False
    quantifier: str = ""
    wants_absent: bool | None = None
    """For Null: True if the key must be absent."""
    fills: bool = False
    tags: tuple[str, ...] = ()
    """The tags that it reads, as its key and as variables."""

    def holds(self, keys: Keys, *, allows: bool) -> bool:
        """True if the request fulfils the condition of an Allow or a Deny."""
        if is_unclear(self.tags, keys):
            return not allows
        said = keys.get(self.key, ())
        if self.wants_absent is not None:
            return self.wants_absent is not bool(said)
        if not said:
            if self.quantifier:
                return self.if_exists or self.quantifier == "ForAllValues"
            return self.if_exists or self.negated
        wanted = self._wanted(keys)
        if self.quantifier == "ForAllValues":
            return all(self._one_holds(one, wanted) for one in said)
        return any(self._one_holds(one, wanted) for one in said)

    def _one_holds(self, said: str, wanted: list[str]) -> bool:
        return any(self._fits(said, value) for value in wanted) is not self.negated

    def _fits(self, said: str, wanted: str) -> bool:
        try:
            return self.fits(said, wanted)
        except ValueError:  # the request's value is of another kind
            return False

    def _wanted(self, keys: Keys) -> list[str]:
        if not self.fills:
            return list(self.values)
        filled = [fill(value, keys) if has_variable(value) else value for value in self.values]
        return [value for value in filled if value is not None]


def read_conditions(block: object, *, fills: bool) -> tuple[Condition, ...]:
    """The conditions of a Condition element. Raises ValueError with a reason."""
    if not isinstance(block, dict):
        raise ValueError("Condition must be an object")
    conditions = []
    for operator, keys in block.items():
        if not isinstance(keys, dict):
            raise ValueError(f"Condition {operator} must be an object")
        for key, given in keys.items():
            values = tuple(
                _text(value) for value in (given if isinstance(given, list) else [given])
            )
            conditions.append(_condition(operator, key.lower(), values, fills=fills))
    return tuple(conditions)


def _condition(operator: str, key: str, values: tuple[str, ...], *, fills: bool) -> Condition:
    parts = _OPERATOR.fullmatch(operator)
    quantifier, name, if_exists = parts.groups() if parts else (None, "", None)
    if name == "Null" and not if_exists:
        if values not in (("true",), ("false",)):
            raise ValueError("Null must be true or false")
        absent = values == ("true",)
        return Condition(_like, key, (), wants_absent=absent, tags=tags_among([key]))
    positive = _NEGATED.get(name, name)
    if positive not in _POSITIVE:
        raise ValueError(f"unknown condition operator {operator!r}")
    has_variables = fills and any(map(has_variable, values))
    for prefix, check in _CHECKED.items():
        if positive.startswith(prefix) and not has_variables:
            for value in values:
                _check(check, value, operator)
    return Condition(
        _POSITIVE[positive],
        key,
        values,
        negated=name in _NEGATED,
        if_exists=if_exists is not None,
        quantifier=quantifier or "",
        fills=has_variables,
        tags=tags_among([key, *(names(values) if fills else ())]),
    )


def _check(check: Callable[[str], object], value: str, operator: str) -> None:
    try:
        check(value)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{value!r} is no value for {operator}") from error


def _text(value: Any) -> str:
    """JSON's booleans and numbers are read as their text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if not isinstance(value, str):
        raise ValueError("values of conditions must be strings, numbers or booleans")
    return value
