"""Names, URLs and ARNs of queues."""

from __future__ import annotations

import pytest

from visibility.contract.errors import InvalidAddress, InvalidParameterValue, QueueDoesNotExist
from visibility.contract.naming import (
    QueueArn,
    check_queue_name,
    parse_arn,
    queue_address,
    queue_url,
    shown_arn,
)

ACCOUNT = "123456789012"


@pytest.mark.parametrize(
    ("name", "fifo"),
    [("a", False), ("A-b_9" * 16, False), ("a.fifo", True), ("a" * 75 + ".fifo", True)],
)
def test_names_within_the_alphabet_and_80_characters_are_accepted(name: str, fifo: bool) -> None:
    check_queue_name(name, fifo=fifo)


@pytest.mark.parametrize("name", ["", "a" * 81, "a/b", "a b", "é", "a.fifo", "a\n", "a.b"])
def test_a_standard_queue_refuses_other_names_and_the_fifo_suffix(name: str) -> None:
    with pytest.raises(InvalidParameterValue) as refusal:
        check_queue_name(name, fifo=False)

    assert refusal.value.message == (
        "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
    )


@pytest.mark.parametrize("name", ["", "a", ".fifo", "a" * 76 + ".fifo", "a.fifo\n", "a/b.fifo"])
def test_a_fifo_queue_needs_the_suffix_and_counts_it(name: str) -> None:
    with pytest.raises(InvalidParameterValue) as refusal:
        check_queue_name(name, fifo=True)

    assert refusal.value.message == (
        "The name of a FIFO queue can only include alphanumeric characters, hyphens, or "
        "underscores, must end with .fifo suffix and be 1 to 80 in length."
    )


@pytest.mark.parametrize(
    ("url", "account"),
    [
        ("q", None),
        ("/q", None),
        ("http://localhost/q", None),
        (f"http://localhost:9324/{ACCOUNT}/q", ACCOUNT),
        (f"https://elsewhere.example/{ACCOUNT}/q/", ACCOUNT),
        (f"https://elsewhere.example//{ACCOUNT}//q//", ACCOUNT),
        ("q/", None),
        (f"https://proxy/prefix/us-east-1/{ACCOUNT}/q", ACCOUNT),
        (f"/{ACCOUNT}/q", ACCOUNT),
        (f"{ACCOUNT}/q", ACCOUNT),
        (f"http%3A//host/{ACCOUNT}/%71", ACCOUNT),
        (f"http://host/{ACCOUNT}/q?Action=SendMessage", ACCOUNT),
        (f"http://{'h' * 600}/{ACCOUNT}/q", ACCOUNT),
    ],
)
def test_an_address_is_the_last_two_parts_of_the_path(url: str, account: str | None) -> None:
    assert queue_address(url) == (account, "q")


def test_an_address_that_no_client_was_given_is_not_read() -> None:
    at_most = f"http://{'h' * (2_048 - len(f'http:///{ACCOUNT}/q'))}/{ACCOUNT}/q"
    assert queue_address(at_most) == (ACCOUNT, "q")
    for url in (at_most.replace("h/", "hh/"), "/" * 7_000_000, f"http://h/{'x' * 3_000}/q"):
        with pytest.raises(QueueDoesNotExist):
            queue_address(url)


def test_a_fifo_name_survives_percent_encoding() -> None:
    assert queue_address(f"http://h/{ACCOUNT}/a%2Efifo") == (ACCOUNT, "a.fifo")


@pytest.mark.parametrize("url", ["http://host/queue/q", "/queue/q/", "queue/q"])
def test_an_address_with_a_strange_account_is_invalid(url: str) -> None:
    with pytest.raises(InvalidAddress):
        queue_address(url)


@pytest.mark.parametrize("url", ["", "/", "//", "http://host", "http://host/", "http://host?q#q"])
def test_an_address_without_a_path_is_a_queue_that_does_not_exist(url: str) -> None:
    with pytest.raises(QueueDoesNotExist):
        queue_address(url)


@pytest.mark.parametrize("character", ["/", "h", "%"])
def test_an_address_of_thousands_of_characters_is_a_queue_that_does_not_exist(
    character: str,
) -> None:
    longest = f"http://{'h' * (2048 - 22)}/{ACCOUNT}/q"
    assert (len(longest), queue_address(longest)) == (2048, (ACCOUNT, "q"))
    with pytest.raises(QueueDoesNotExist):
        queue_address(character * 2049 + longest)


@pytest.mark.parametrize("name", ["a b", "a%2Fb", "a" * 81, "a.fifo.fifo", "\ud800", "%ff"])
def test_a_name_no_queue_can_have_is_a_queue_that_does_not_exist(name: str) -> None:
    with pytest.raises(QueueDoesNotExist):
        queue_address(f"http://host/{ACCOUNT}/{name}")


def test_a_url_is_resolved_to_what_it_was_made_of() -> None:
    url = queue_url("http://localhost:9324/", ACCOUNT, "a.fifo")

    assert url == f"http://localhost:9324/{ACCOUNT}/a.fifo"
    assert queue_address(url) == (ACCOUNT, "a.fifo")


def test_an_arn_is_parsed_to_what_it_was_made_of() -> None:
    arn = f"arn:aws:sqs:eu-west-1:{ACCOUNT}:a.fifo"

    assert parse_arn(arn) == QueueArn("eu-west-1", ACCOUNT, "a.fifo")
    assert parse_arn(arn.replace("arn:aws:", "arn:aws-cn:")) == parse_arn(arn)


@pytest.mark.parametrize(
    "arn",
    ["", "q", "arn:aws:sns:r:1:q", f"arn:aws:sqs:r:{ACCOUNT}:q:x", f"arn:aws:sqs:r:{ACCOUNT}:"],
)
def test_other_text_is_no_queue_arn(arn: str) -> None:
    assert parse_arn(arn) is None


@pytest.mark.parametrize(
    ("region", "partition"),
    [
        ("us-east-1", "aws"),
        ("cn-north-1", "aws-cn"),
        ("us-gov-west-1", "aws-us-gov"),
        ("us-iso-east-1", "aws-iso"),
        ("us-isob-east-1", "aws-iso-b"),
        ("eu-isoe-west-1", "aws-iso-e"),
        ("us-isof-south-1", "aws-iso-f"),
        ("eusc-de-east-1", "aws-eusc"),
        ("elasticmq", "aws"),
    ],
)
def test_an_arn_is_shown_in_the_partition_of_its_region(region: str, partition: str) -> None:
    arn = f"arn:aws:sqs:{region}:{ACCOUNT}:q"

    assert shown_arn(arn) == f"arn:{partition}:sqs:{region}:{ACCOUNT}:q"
    assert parse_arn(shown_arn(arn)) == parse_arn(arn)
