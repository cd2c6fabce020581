"""The policy that AddPermission and RemovePermission write."""

from __future__ import annotations

import json
from typing import Any

import pytest

from visibility.contract.errors import InvalidParameterValue
from visibility.contract.permissions import with_permission, without_permission

ARN = "arn:aws:sqs:us-east-1:000000000000:q"
ONE, OTHER = "111111111111", "222222222222"


def granted(label: str, policy: str | None = None) -> str:
    """A policy with a statement of this label."""
    return with_permission(policy, ARN, label, [ONE], ["SendMessage"])


def labels(policy: str) -> list[Any]:
    return [statement.get("Sid") for statement in json.loads(policy)["Statement"]]


def test_a_first_permission_makes_the_policy_of_aws() -> None:
    policy = with_permission(None, ARN, "crate", [ONE], ["ReceiveMessage"])

    assert json.loads(policy) == {
        "Version": "2008-10-17",
        "Id": f"{ARN}/SQSDefaultPolicy",
        "Statement": [
            {
                "Sid": "crate",
                "Effect": "Allow",
                "Principal": {"AWS": f"arn:aws:iam::{ONE}:root"},
                "Action": "SQS:ReceiveMessage",
                "Resource": ARN,
            }
        ],
    }


def test_several_accounts_and_actions_are_lists_in_the_order_given() -> None:
    policy = with_permission(None, ARN, "crate", [OTHER, ONE], ["SendMessage", "GetQueueUrl"])

    (statement,) = json.loads(policy)["Statement"]
    accounts = [f"arn:aws:iam::{OTHER}:root", f"arn:aws:iam::{ONE}:root"]
    assert statement["Principal"] == {"AWS": accounts}
    assert statement["Action"] == ["SQS:SendMessage", "SQS:GetQueueUrl"]


def test_a_star_is_every_action() -> None:
    policy = with_permission(None, ARN, "crate", [ONE], ["*"])

    assert json.loads(policy)["Statement"][0]["Action"] == "SQS:*"


def test_labels_stay_in_the_order_added() -> None:
    policy = granted("a", granted("c", granted("b")))

    assert labels(policy) == ["b", "c", "a"]
    rest = without_permission(policy, "c")
    assert rest is not None
    assert labels(rest) == ["b", "a"]


def test_the_last_statement_takes_the_policy_along() -> None:
    assert without_permission(granted("a"), "a") is None


@pytest.mark.parametrize("account", [ONE, OTHER])
def test_a_label_in_use_is_refused(account: str) -> None:
    with pytest.raises(InvalidParameterValue) as refusal:
        with_permission(granted("a"), ARN, "a", [account], ["*"])

    assert refusal.value.message == (
        "Value a for parameter Label is invalid. Reason: Already exists."
    )


@pytest.mark.parametrize("policy", [None, "{}", granted("b"), '{"Statement": "a"}'])
def test_an_unknown_label_is_refused(policy: str | None) -> None:
    with pytest.raises(InvalidParameterValue) as refusal:
        without_permission(policy, "a")

    assert refusal.value.message == (
        "Value a for parameter Label is invalid. Reason: can't find label."
    )


FOREIGN = {
    "Version": "2012-10-17",
    "Extra": [1, {"x": None}],
    "Statement": [{"Effect": "Deny", "Principal": "*", "Action": "sqs:*", "Resource": "*"}],
}


def test_a_policy_of_the_owner_keeps_its_members_and_statements() -> None:
    policy = json.loads(granted("a", json.dumps(FOREIGN)))

    added = policy["Statement"].pop()
    assert added["Sid"] == "a"
    assert policy == FOREIGN
    assert list(policy) == list(FOREIGN)


def test_a_single_statement_becomes_the_first_of_the_list() -> None:
    single = {"Sid": "own", "Effect": "Allow"}
    given = json.dumps({"Statement": single, "Id": "mine"})

    policy = granted("a", given)

    assert labels(policy) == ["own", "a"]
    assert json.loads(policy)["Id"] == "mine"
    assert without_permission(given, "own") is None
    with pytest.raises(InvalidParameterValue, match="Already exists"):
        granted("own", given)


def test_a_policy_without_statements_gets_the_first() -> None:
    assert labels(granted("a", '{"Version": "2012-10-17"}')) == ["a"]


def test_statements_of_the_owner_stay_when_the_added_one_is_removed() -> None:
    rest = without_permission(granted("a", json.dumps(FOREIGN)), "a")

    assert rest is not None
    assert json.loads(rest) == FOREIGN
