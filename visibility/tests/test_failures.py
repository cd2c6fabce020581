"""Failures: what tells dead letters apart, and what does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from visibility.content.content import Extras
from visibility.content.failures import FAILURE_ID_LENGTH, FAILURE_VERSION, failure_of, folded
from visibility.content.filters import matches_inside
from visibility.contract.move_task import MessageFilter


def attributes(**given: str) -> Extras:
    found = {name.replace("_", "."): ("String", value.encode()) for name, value in given.items()}
    return Extras("sender", attributes=found)


def signs(body: Any, extras: Extras | None = None) -> dict[str, str]:
    text = body if isinstance(body, str) else json.dumps(body)
    return dict(failure_of(text, extras).signs)


def test_several_signs_of_an_error_are_taken_together() -> None:
    body = {"id": 7, "error": {"type": "TaxLookup", "message": "no answer of tax-3 in 200 ms"}}

    assert signs(body) == {
        "json:error.type": "TaxLookup",
        "json:error.message": "no answer of tax-… in … ms",
    }


def test_attributes_come_before_fields_of_the_body() -> None:
    extras = attributes(error_type="Timeout", tenant="a")

    assert list(signs({"error": {"code": "E1042"}}, extras).items()) == [
        ("attribute:error.type", "Timeout"),
        ("json:error.code", "E1042"),
    ]


def test_codes_keep_their_digits_and_ids_do_not_tell_apart() -> None:
    one, other = ({"errorCode": code, "orderId": at} for at, code in enumerate(("E1", "E2")))

    assert failure_of(json.dumps(one), None) != failure_of(json.dumps(other), None)
    assert signs({"errorCode": 503, "orderId": 1}) == signs({"errorCode": 503, "orderId": 2})
    assert signs({"error": {"code": "4711000815"}}) == {"json:error.code": "…"}


def test_times_stacks_and_counts_are_no_signs() -> None:
    body = {
        "error": {"type": "A", "stack": "at x:1", "timestamp": "now", "id": "e1", "attempts": 3},
        "failedAt": "2026-11-25",
    }

    assert signs(body) == {"json:error.type": "A"}


def test_without_an_error_the_kind_of_a_message_tells_it_apart() -> None:
    assert signs({"eventType": "order.created", "customer": "Ann"}) == {
        "json:eventType": "order.created"
    }
    assert signs({"customer": "Ann", "total": 3}) == {"fields": "customer, total"}
    assert signs("payment 4711 of 'Ann'\nmore") == {"text": "payment … of …"}


@pytest.mark.parametrize(
    "text",
    [
        "order 4711 failed",
        "order 0815 failed",
    ],
)
def test_numbers_are_folded(text: str) -> None:
    assert folded(text) == "order … failed"


@pytest.mark.parametrize(
    "varying",
    ["8f14e45f-ceea-467f-a9c0-9d6e3a1b2c3d", "0xdeadbeef01", "'Ann'", "ann@example.com", "10:15"],
)
def test_ids_addresses_and_quoted_texts_are_folded(varying: str) -> None:
    assert folded(f"for {varying} in eu") == "for … in eu"


@pytest.mark.parametrize(
    "body", ["", "{", "[1]", "{}", "[" * 5_000, "\x00", '{"error": null}', '{"error": "\\ud800"}']
)
def test_anything_has_a_failure(body: str) -> None:
    failure = failure_of(body, None)

    assert len(failure.failure_id) == FAILURE_ID_LENGTH
    assert len(failure.signs) == 1


def test_what_a_failure_is_stays_the_same_between_hosts() -> None:
    """Filters of running redrives have its id."""
    assert failure_of('{"error": {"type": "TaxLookup"}}', None).failure_id == "e8586d58a7a55461"


def test_failures_are_those_of_their_version() -> None:
    """Counts are stored by failure: whoever changes this raises FAILURE_VERSION, so that messages
    are counted anew."""
    kinds = attributes(event_type="order.placed")
    texts = ['{"error": {"code": "E1042", "message": "user 17 of \'a\'"}}', '{"a": 1, "b": 2}']
    found = [failure_of(text, None).signs for text in [*texts, "no route to 10.0.0.7\n at x"]]

    assert FAILURE_VERSION == 1
    assert [*found, failure_of("{}", kinds).signs] == [
        (("json:error.code", "E1042"), ("json:error.message", "user … of …")),
        (("fields", "a, b"),),
        (("text", "no route to …"),),
        (("attribute:event.type", "order.placed"),),
    ]


def test_a_body_of_any_size_is_folded_in_bounded_time() -> None:
    body = json.dumps({f"error{at}": "'" * 10_000 + "9" * 10_000 for at in range(30)})
    found = signs(body)

    assert len(found) == 4
    assert all(len(value) <= 120 for value in found.values())


def test_a_filter_finds_the_messages_of_a_failure() -> None:
    one, other = (json.dumps({"id": at, "error": {"type": kind}}) for at, kind in enumerate("AB"))
    wanted = MessageFilter(failure=failure_of(one, None).failure_id)

    assert wanted.reads_bodies
    assert wanted.opens
    assert matches_inside(wanted, one.replace("0", "17"), None)
    assert not matches_inside(wanted, other, None)
