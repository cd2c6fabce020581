"""Decisions are those of the table, and the rules between them hold for any policies."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth.policy import AccessQuestion, Authorizer, Decision, NamedPolicy, Rule, decide
from auth.policy_document import Kind, Policy, PolicyRefused, read_policy
from auth.tests.policy_cases import (
    ANN,
    AWAY,
    AWAY_ROOT,
    BOB,
    CASES,
    HOME,
    NOBODY,
    QUEUE,
    ROOT,
    SEND,
    Case,
    Statement,
    allow,
    deny,
    forbid,
    grant,
    when,
)
from auth.variables import expression

ALLOWING = {Rule.ROOT, Rule.IDENTITY_ALLOW, Rule.QUEUE_ALLOW}


def _text(statements: Iterable[Statement], version: str = "2012-10-17") -> str:
    return json.dumps({"Version": version, "Statement": list(statements)})


def _asked(case: Case) -> AccessQuestion:
    account = case.resource.split(":")[4]
    return AccessQuestion(case.who, case.action, case.resource, account, lambda: case.says)


def _decided(case: Case) -> Decision:
    identity = read_policy(_text(case.identity, case.version), Kind.IDENTITY)
    queue = read_policy(_text(case.queue, case.version), Kind.QUEUE)
    return decide(_asked(case), [NamedPolicy("p", identity)], queue)


@pytest.mark.parametrize("case", CASES, ids=[case.name.replace(" ", "-") for case in CASES])
def test_case(case: Case) -> None:
    decision = _decided(case)

    assert decision.rule is case.rule
    assert decision.allowed is (case.rule in ALLOWING)
    assert bool(decision.message) is not decision.allowed


def test_the_table_is_wide() -> None:
    assert len(CASES) >= 100
    assert {case.rule for case in CASES} == set(Rule)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            Case("", ANN, Rule.NO_IDENTITY_ALLOW),
            f"User: arn:aws:iam::{HOME}:user/ann is not authorized to perform: sqs:sendmessage on "
            f"resource: {QUEUE} "
            "because no identity-based policy allows the sqs:sendmessage action",
        ),
        (
            Case("", AWAY_ROOT, Rule.NO_QUEUE_ALLOW),
            f"User: arn:aws:iam::{AWAY}:root is not authorized to perform: sqs:sendmessage on "
            f"resource: {QUEUE} "
            "because no resource-based policy allows the sqs:sendmessage action",
        ),
        (
            Case("", ANN, Rule.IDENTITY_DENY, identity=(deny(),)),
            f"User: arn:aws:iam::{HOME}:user/ann is not authorized to perform: sqs:sendmessage on "
            f"resource: {QUEUE} "
            "with an explicit deny in an identity-based policy",
        ),
        (Case("", NOBODY, Rule.NO_QUEUE_ALLOW), f"Access to the resource {QUEUE} is denied."),
    ],
)
def test_refusals_are_worded_as_by_aws(case: Case, message: str) -> None:
    assert _decided(case).message == message


def test_a_decision_names_the_statement_that_decided() -> None:
    named = Case("", ANN, Rule.IDENTITY_ALLOW, identity=(allow(Sid="Senders"),))

    assert _decided(named).source == "p, Senders"
    assert _decided(named._replace(identity=(allow("x:y"), allow()))).source == "p, statement 2"


# -- rules -----------------------------------------------------------------------------------------

CONDITIONS = st.sampled_from(
    [
        {},
        when("StringEquals", "k", "1"),
        when("StringNotEquals", "k", "1"),
        when("Null", "k", "true"),
    ]
)
ACTIONS = st.sampled_from([SEND, "sqs:*", "sqs:ReceiveMessage"])
OWN = st.builds(
    lambda make, action, condition: make(action, **condition),
    st.sampled_from([allow, deny]),
    ACTIONS,
    CONDITIONS,
)
GRANTS = st.builds(
    lambda make, principal, action, condition: make(principal, action, **condition),
    st.sampled_from([grant, forbid]),
    st.sampled_from(["*", {"AWS": HOME}, {"AWS": AWAY}, {"AWS": ANN.arn}, {"AWS": BOB.arn}]),
    ACTIONS,
    CONDITIONS,
)
WORLDS = st.builds(
    lambda who, own, grants, says: Case(
        "", who, Rule.ROOT, identity=tuple(own), queue=tuple(grants), says=says
    ),
    st.sampled_from([ROOT, ANN, AWAY_ROOT, BOB, NOBODY]),
    st.lists(OWN, max_size=3),
    st.lists(GRANTS, max_size=3),
    st.sampled_from([{}, {"k": ("1",)}, {"k": ("2",)}]),
)


@given(WORLDS)
def test_a_deny_for_everyone_always_wins(case: Case) -> None:
    assert _decided(case._replace(queue=(*case.queue, forbid()))).rule is Rule.QUEUE_DENY


@given(WORLDS, OWN, GRANTS)
def test_one_more_allow_never_takes_anything_away(
    case: Case, own: Statement, given_: Statement
) -> None:
    more = case._replace(
        identity=(*case.identity, own | {"Effect": "Allow"}),
        queue=(*case.queue, given_ | {"Effect": "Allow"}),
    )

    assert _decided(more).allowed >= _decided(case).allowed


@given(WORLDS)
def test_the_order_of_statements_never_matters(case: Case) -> None:
    turned = case._replace(identity=case.identity[::-1], queue=case.queue[::-1])

    assert _decided(turned).rule is _decided(case).rule


@given(st.lists(WORLDS, min_size=1, max_size=12))
def test_remembered_decisions_are_the_decisions(cases: list[Case]) -> None:
    authorizer = Authorizer(partial(read_policy, kind=Kind.QUEUE))
    for case in cases * 2:
        identity = _text(case.identity)
        named = NamedPolicy("p", read_policy(identity, Kind.IDENTITY))
        decision = authorizer.decide(_asked(case), (named,), _text(case.queue), identity)
        assert decision.rule is _decided(case).rule


def test_a_decision_without_conditions_asks_nothing_of_the_request() -> None:
    def fail() -> Any:
        raise AssertionError("not needed")

    asked = AccessQuestion(ANN, SEND, QUEUE, HOME, fail)
    policy = read_policy(
        _text([allow(RECEIVE_ONLY, **when("Bool", "k", "true")), allow()]), Kind.IDENTITY
    )

    assert decide(asked, [NamedPolicy("p", policy)], None).allowed


RECEIVE_ONLY = "sqs:ReceiveMessage"


def test_what_is_remembered_is_bounded_in_size() -> None:
    authorizer = Authorizer(lambda text: read_policy(text, Kind.QUEUE))
    for number in range(600):
        text = _text([grant(Sid=f"{number}")]) + " " * 10_000
        assert authorizer.decide(
            AccessQuestion(NOBODY, SEND, QUEUE, HOME, dict), (), text, 1
        ).allowed
        asked = AccessQuestion(ANN, SEND, f"{number}" * 1000, HOME, dict)
        assert not authorizer.decide(asked, (), None, 1).allowed

    assert sum(map(len, authorizer._policies)) < 5_000_000
    remembered = [key for key in authorizer._known if key[3] is not None]
    assert len(remembered) == len(authorizer._known) <= len(authorizer._policies)


# -- texts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        "null",
        '"*"',
        "[" * 100_000,
        "{" + '"a":{' * 5_000,
        '{"Statement": 1}',
        '{"Statement": ["x"]}',
        '{"Version": "2013-01-01"}',
        '{"Version": 1}',
        '{"statement": []}',
        '{"Statement": {}}',
        " " * 70_000,
    ],
)
@pytest.mark.parametrize("kind", Kind)
def test_what_is_no_policy_is_refused(text: str, kind: Kind) -> None:
    with pytest.raises(PolicyRefused) as refused:
        read_policy(text, kind)
    assert "\n" not in str(refused.value)


def _but(**changes: Any) -> Statement:
    return {name: value for name, value in (grant() | changes).items() if value is not None}


@pytest.mark.parametrize(
    "statement",
    [
        _but(Effect="allow"),
        _but(Effect=None),
        _but(Action=None),
        _but(Action=[]),
        _but(Action=[1]),
        _but(Action={}),
        _but(NotAction="*"),
        _but(Resource=7),
        _but(NotResource="*"),
        _but(Principal=None),
        _but(Principal="somebody"),
        _but(Principal={}),
        _but(Principal={"AWS": [1]}),
        _but(Principal={"Nobody": "x"}),
        _but(Principal={"AWS": f"arn:aws:iam::{HOME}:user/*"}),
        _but(NotPrincipal="*"),
        _but(Sid=7),
        _but(Condition=[]),
        _but(Condition={"StringEquals": "x"}),
        _but(Condition={"StringEquals": {"k": {}}}),
        _but(Condition={"StringSounds": {"k": "x"}}),
        _but(Condition={"ForSomeValues:StringEquals": {"k": "x"}}),
        _but(Condition={"NumericEquals": {"k": "x"}}),
        _but(Condition={"DateEquals": {"k": "tomorrow"}}),
        _but(Condition={"IpAddress": {"k": "300.0.0.1"}}),
        _but(Condition={"Null": {"k": "maybe"}}),
        _but(Extra=1),
    ],
)
def test_what_is_no_statement_is_refused(statement: Statement) -> None:
    read_policy(_text([grant()]), Kind.QUEUE)
    with pytest.raises(PolicyRefused):
        read_policy(_text([statement]), Kind.QUEUE)


def test_a_users_policy_names_resources_and_no_principal() -> None:
    for statement in (grant(), {"Effect": "Allow", "Action": "*"}):
        with pytest.raises(PolicyRefused):
            read_policy(_text([statement]), Kind.IDENTITY)


WORDS = st.sampled_from(
    [
        "Effect",
        "Allow",
        "Action",
        "*",
        "sqs:*",
        "AWS",
        "Principal",
        "Condition",
        "Null",
        "true",
        "Sid",
        "${a}",
        "${*}",
    ]
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | WORDS
    | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(WORDS | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(JSON, st.sampled_from(Kind))
def test_any_json_is_a_policy_or_refused(value: Any, kind: Kind) -> None:
    for document in (value, {"Statement": value}, {"Statement": [grant() | {"Condition": value}]}):
        try:
            policy = read_policy(msgspec.json.encode(document).decode(), kind)
        except PolicyRefused:
            continue
        asked = AccessQuestion(ANN, SEND, QUEUE, HOME, lambda: {"a": ("x",), "k": ("1",)})
        decide(asked, [NamedPolicy("p", policy)], policy)


@given(st.text(max_size=200), st.sampled_from(Kind))
def test_any_text_is_a_policy_or_refused(text: str, kind: Kind) -> None:
    with suppress(PolicyRefused):
        read_policy(text, kind)


# -- wildcards -------------------------------------------------------------------------------------


def _like(text: str, pattern: str) -> bool:
    """The meaning of `*` and `?`, without a regular expression."""
    ends = {0}
    for character in pattern:
        if character == "*":
            ends = set(range(min(ends, default=len(text) + 1), len(text) + 1))
        else:
            fits = {end for end in ends if end < len(text) and character in ("?", text[end])}
            ends = {end + 1 for end in fits}
    return len(text) in ends


@given(st.text("ab:.", max_size=12), st.text("ab:.*?", max_size=8))
def test_wildcards_match_what_they_stand_for(text: str, pattern: str) -> None:
    assert bool(re.fullmatch(expression(pattern), text, re.S)) is _like(text, pattern)


@pytest.mark.parametrize("part", ["*a", "*?", "?*", "*a?*"])
def test_no_pattern_takes_long(part: str) -> None:
    wildcards = part * 30 + "b"
    liked = _policy((allow(**when("StringLike", "aws:UserAgent", wildcards)),), Kind.IDENTITY)
    named = _policy((allow(resource="arn:aws:sqs:*:*:" + wildcards),), Kind.IDENTITY)
    asked = AccessQuestion(
        ANN, SEND, QUEUE + "a" * 80, HOME, lambda: {"aws:useragent": ("a" * 2000,)}
    )

    for policy in (liked, named):
        assert not decide(asked, [NamedPolicy("p", policy)], None).allowed


def _policy(statements: Iterable[Statement], kind: Kind) -> Policy:
    return read_policy(_text(statements), kind)
