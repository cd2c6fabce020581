"""Valid Policy attributes of a queue, and the wording of refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from visibility.contract.errors import InvalidAttributeValue, InvalidParameterValue, OverLimit
from visibility.contract.queue_policy import (
    check_policy_of_queue,
    compact_policy,
    may_admit_everyone,
    statements_without_effect,
)

ACCOUNT = "123456789012"
ARN = f"arn:aws:sqs:us-east-1:{ACCOUNT}:orders"
GRANT: dict[str, Any] = {
    "Effect": "Allow",
    "Principal": "*",
    "Action": "sqs:SendMessage",
    "Resource": ARN,
}
NAMED = f"arn:aws:iam::{ACCOUNT}"
WITHOUT_RESOURCE = {name: value for name, value in GRANT.items() if name != "Resource"}
WITHOUT_PRINCIPAL = {name: value for name, value in GRANT.items() if name != "Principal"}
WITHOUT_ACTION = {name: value for name, value in GRANT.items() if name != "Action"}


def _shown(element: str, value: Any) -> str:
    document = {"Statement": [{"Effect": "Deny", element: value}]}
    return json.dumps(document, separators=(",", ":"))


def _check(*statements: Any, **members: Any) -> None:
    document = {"Version": "2012-10-17", "Statement": list(statements)} | members
    check_policy_of_queue(json.dumps(document))


@pytest.mark.parametrize(
    "statement",
    [
        GRANT,
        GRANT | {"Sid": "one", "Effect": "Deny"},
        WITHOUT_ACTION | {"NotAction": ["sqs:DeleteQueue"]},
        WITHOUT_RESOURCE | {"NotResource": ARN + "2"},
        WITHOUT_PRINCIPAL | {"NotPrincipal": {"AWS": ACCOUNT}},
        GRANT | {"Condition": {"ArnLike": {"aws:SourceArn": "arn:aws:sns:*:*:topic"}}},
    ],
)
def test_statements_about_this_queue_are_accepted(statement: dict[str, Any]) -> None:
    _check(statement)
    _check(Statement=statement)


@pytest.mark.parametrize(
    "actions",
    [
        "sqs:*",
        "SQS:*",
        "*",
        "sqs:sendmessage",
        "SQS:Send*",
        "sqs:?endMessage",
        ["sqs:SendMessage", "sqs:PurgeQueue"],
    ],
)
def test_actions_of_sqs_are_accepted(actions: Any) -> None:
    _check(GRANT | {"Action": actions})


@pytest.mark.parametrize(
    "actions",
    [
        "s3:GetObject",
        "SendMessage",
        "sqs:",
        "sqs:Foo*",
        "",
        " sqs:*",
        ["sqs:SendMessage", "sns:Publish"],
        [],
    ],
)
def test_other_actions_are_refused(actions: Any) -> None:
    _refuse(GRANT | {"Action": actions})


@pytest.mark.parametrize("element", ["Action", "NotAction"])
@pytest.mark.parametrize(
    "action", ["sqs:Foo", "SQS:ChangeMessageVisibilityBatch", "sqs:sendmessagebatch"]
)
def test_an_action_that_cannot_be_granted_is_named(element: str, action: str) -> None:
    with pytest.raises(InvalidParameterValue) as refusal:
        _check(GRANT, WITHOUT_ACTION | {element: ["sqs:SendMessage", action]})

    assert refusal.value.message == (
        f"Value {action} for parameter ActionName is invalid. "
        "Reason: Please refer to the appropriate WSDL for a list of valid actions."
    )


@pytest.mark.parametrize(
    "principal",
    [
        "*",
        {"AWS": "*"},
        {"AWS": ACCOUNT},
        {"AWS": [f"{NAMED}:root", f"{NAMED}:user/team/ann", f"{NAMED}:role/writer"]},
        {"AWS": f"arn:aws:sts::{ACCOUNT}:assumed-role/writer/session"},
        {"AWS": "arn:aws-cn:iam::123456789012:root"},
        {"AWS": "AIDAQ3EGRIV6EXAMPLE"},
        {"Service": ["sns.amazonaws.com", "events.amazonaws.com"], "AWS": ACCOUNT},
        {"Federated": "cognito-identity.amazonaws.com"},
        {"Federated": f"{NAMED}:saml-provider/corp"},
        {"CanonicalUser": "7" * 64},
    ],
)
def test_well_formed_principals_are_accepted(principal: Any) -> None:
    _check(GRANT | {"Principal": principal})


@pytest.mark.parametrize(
    "principal",
    [
        "",
        ACCOUNT,
        ["*"],
        {},
        {"AWS": []},
        {"AWS": ""},
        {"AWS": "me"},
        {"AWS": "12345678901"},
        {"AWS": "1234-5678-9012"},
        {"AWS": "١" * 12},
        {"AWS": [ACCOUNT, "me"]},
        {"AWS": f"{NAMED}:root/ann"},
        {"AWS": f"{NAMED}:group/team"},
        {"AWS": f"{NAMED}:user/"},
        {"AWS": f"{NAMED}:user/*"},
        {"AWS": "arn:aws:iam:us-east-1:123456789012:root"},
        {"AWS": ARN},
        {"Service": "sns"},
        {"Service": "*"},
        {"Federated": "corp"},
        {"CanonicalUser": "me"},
        {"Nobody": ACCOUNT},
    ],
)
@pytest.mark.parametrize("element", ["Principal", "NotPrincipal"])
def test_other_principals_are_refused(element: str, principal: Any) -> None:
    _refuse(WITHOUT_PRINCIPAL | {element: principal})


ABOUT_THIS_QUEUE = [
    *(
        GRANT | {"Resource": resource}
        for resource in (
            "*",
            [ARN],
            [ARN, ARN + "2"],
            "arn:aws:sqs:*:*:*",
            f"arn:aws:sqs:us-east-1:{ACCOUNT}:ord*",
            f"arn:aws:sqs:us-east-1:{ACCOUNT}:${{aws:PrincipalTag/queue}}",
        )
    ),
    WITHOUT_RESOURCE | {"NotResource": ARN + "2"},
]
ABOUT_OTHERS = [
    *(
        GRANT | {"Resource": resource}
        for resource in (
            "'$sqs_queue_arn'",
            "orders",
            "",
            ARN + "2",
            ARN.replace("us-east-1", "eu-west-1"),
            ARN.replace(ACCOUNT, "210987654321"),
            "arn:aws:s3:::bucket",
            [ARN + "2", "orders"],
            f"arn:aws:sqs:eu-west-1:{ACCOUNT}:${{aws:username}}",
        )
    ),
    WITHOUT_RESOURCE | {"NotResource": ARN},
    WITHOUT_RESOURCE | {"NotResource": [ARN + "2", "*"]},
]


@pytest.mark.parametrize("statement", [*ABOUT_THIS_QUEUE, *ABOUT_OTHERS])
def test_any_resource_is_accepted(statement: dict[str, Any]) -> None:
    _check(statement)


@pytest.mark.parametrize("statement", ABOUT_THIS_QUEUE)
def test_statements_about_this_queue_have_an_effect(statement: dict[str, Any]) -> None:
    assert _without_effect(statement) == []


@pytest.mark.parametrize("statement", ABOUT_OTHERS)
def test_statements_about_other_resources_have_none(statement: dict[str, Any]) -> None:
    assert _without_effect(statement) == ["statement 1"]
    assert _without_effect(GRANT, statement | {"Sid": "other"}, GRANT) == ["other"]


def test_a_policy_that_cannot_be_read_names_no_statement() -> None:
    assert statements_without_effect("{", ARN) == []


@pytest.mark.parametrize("statement", [WITHOUT_RESOURCE, GRANT | {"Resource": []}])
def test_a_statement_without_a_resource_is_refused(statement: dict[str, Any]) -> None:
    _refuse(statement)


@pytest.mark.parametrize(
    "document", ["{}", '{"Statement": []}', '{"Version": "2012-10-17", "Id": "i"}', "null", "{"]
)
def test_a_policy_without_statements_is_refused(document: str) -> None:
    with pytest.raises(InvalidAttributeValue):
        check_policy_of_queue(document)


def test_too_much_is_over_the_limit_in_the_words_of_aws() -> None:
    many = [f"sqs:{'?' * length}*" for length in range(8)]
    _check(GRANT | {"Action": many[:7]}, *[GRANT] * 19)

    for statements, message in (
        (
            [GRANT | {"Action": many}],
            "8 actions were found in a statement from the submitted policy, max allowed is 7",
        ),
        ([GRANT] * 21, "21 statements were found in the submitted policy, max allowed is 20"),
        ([GRANT | {"Sid": "s" * 8_192}], "Submitted policy is over max allowed size."),
    ):
        with pytest.raises(OverLimit) as refusal:
            _check(*statements)
        assert refusal.value.message == message


def _without_effect(*statements: dict[str, Any]) -> list[str]:
    document = {"Version": "2012-10-17", "Statement": statements}
    return statements_without_effect(json.dumps(document), ARN)


def _refuse(statement: dict[str, Any]) -> None:
    for statements in ([statement], [GRANT, statement]):
        with pytest.raises(InvalidAttributeValue) as refusal:
            _check(*statements)
        assert refusal.value.message == "Invalid value for the parameter Policy."


@pytest.mark.parametrize(
    ("principals", "admits"),
    [
        ({"Principal": "*"}, True),
        ({"Principal": {"AWS": "*"}}, True),
        ({"Principal": {"AWS": [ACCOUNT, "*"]}}, True),
        ({"NotPrincipal": {"AWS": ACCOUNT}}, True),
        ({"NotPrincipal": "*"}, False),
        ({"Principal": {"AWS": ACCOUNT}}, False),
        ({"Principal": "*", "Effect": "Deny"}, False),
        ({"Principal": {"Service": "sns.amazonaws.com"}, "Action": "sqs:*"}, False),
    ],
)
def test_a_policy_may_admit_everyone(principals: dict[str, Any], admits: bool) -> None:
    text = json.dumps(
        {"Statement": [GRANT | {"Principal": {"AWS": ACCOUNT}}, WITHOUT_PRINCIPAL | principals]}
    )
    assert may_admit_everyone(text) is admits
    escaped = text.replace("*", "\\u002a").replace("NotP", "\\u004eotP")
    assert may_admit_everyone(escaped) is admits


@pytest.mark.parametrize("text", [None, "", "{*", '{"Statement": "*"}'])
def test_no_policy_admits_nobody(text: str | None) -> None:
    assert not may_admit_everyone(text)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ('{ "Statement" : [ ], "Id": "i" }', '{"Id":"i","Statement":[]}'),
        ('{"Statement": {"Action": "*", "Effect": "Deny"}}', _shown("Action", "*")),
        ('{"Statement": [{"Effect": "Deny", "NotAction": ["a"]}]}', _shown("NotAction", "a")),
        ('{"Statement": [{"Action": ["a", "b"], "Effect": "Deny"}]}', _shown("Action", ["a", "b"])),
        (
            '{"Statement": [{"Effect": "Deny", "NotPrincipal": {"Service": ["s"]}}]}',
            _shown("NotPrincipal", {"Service": "s"}),
        ),
        (
            '{"Statement": [{"Condition": {"Bool": {"k": [true]}}, "Effect": "Deny"}]}',
            _shown("Condition", {"Bool": {"k": [True]}}),
        ),
        ('{"Statement": ["s"], "Else": 1}', '{"Statement":["s"],"Else":1}'),
        ("no policy", "no policy"),
    ],
)
def test_a_policy_has_one_form(given: str, shown: str) -> None:
    assert compact_policy(given) == compact_policy(shown) == shown
