"""The smaller parts: canonical forms, dates, credentials, and unverified callers."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from auth import AccessKey, Caller, CredentialSet, open_caller
from auth.canonical import canonical_path, canonical_query, fold_blanks, split_query
from auth.dates import read_basic_date, read_http_date, write_basic_date
from auth.tests.signed_requests import KEY, SIGNING_ACCOUNT_KEY, sign_header, sign_query


@pytest.mark.parametrize(
    ("path", "canonical"),
    [
        (b"", b"/"),
        (b"/", b"/"),
        (b"/123/q.fifo", b"/123/q.fifo"),
        (b"/a//b/", b"/a/b/"),
        (b"/../a/./b/../c", b"/a/c"),
        (b"/..", b"/"),
        (b"/a%20b", b"/a%2520b"),
        (b"/a:b+c", b"/a%3Ab%2Bc"),
    ],
)
def test_paths_are_normalised_and_encoded_once_more(path: bytes, canonical: bytes) -> None:
    assert canonical_path(path) == canonical


@pytest.mark.parametrize(
    ("query", "canonical"),
    [
        (b"", b""),
        (b"&&b&a=", b"a=&b="),
        (b"a=b+c&a=b%20b", b"a=b%20b&a=b%20c"),
        (b"a=%2f&a=%zz&a=%", b"a=%25&a=%25zz&a=%2F"),
        (b"a=b=c", b"a=b%3Dc"),
        (b"\xff=1", b"%FF=1"),
    ],
)
def test_queries_are_decoded_encoded_and_sorted(query: bytes, canonical: bytes) -> None:
    assert canonical_query(split_query(query)) == canonical


@pytest.mark.parametrize(
    ("value", "folded"),
    [(b"a", b"a"), (b" a ", b"a"), (b"a  b", b"a b"), (b"\ta\t \tb", b"a b"), (b"  ", b"")],
)
def test_header_values_are_trimmed_and_folded(value: bytes, folded: bytes) -> None:
    assert fold_blanks(value) == folded


def test_dates_read_as_they_are_written() -> None:
    epoch_s = int(datetime(2015, 8, 30, 12, 36, tzinfo=UTC).timestamp())

    assert write_basic_date(epoch_s + 0.9) == "20150830T123600Z"
    assert read_basic_date(b"20150830T123600Z") == epoch_s
    assert read_http_date(b"Sun, 30 Aug 2015 12:36:00 GMT") == epoch_s


@pytest.mark.parametrize(
    "date",
    [
        b"",
        b"20150830T123600",
        b"20150830 123600Z",
        b"20150830T123660Z",
        b"2015083_T123600Z",
        b"00000101T000000Z",
        b"20150230T000000Z",
    ],
)
def test_what_is_no_date_is_none(date: bytes) -> None:
    assert read_basic_date(date) is None


@pytest.mark.parametrize(
    "date", [b"", b"Sun, 30 Foo 2015 12:36:00 GMT", b"Sun, 31 Feb 2015 12:36:00 GMT"]
)
def test_what_is_no_http_date_is_none(date: bytes) -> None:
    assert read_http_date(date) is None


def test_two_keys_may_not_share_an_id() -> None:
    with pytest.raises(ValueError, match="'AKIDEXAMPLE' occurs twice"):
        CredentialSet([KEY, KEY])


def test_the_text_of_a_key_holds_no_secret() -> None:
    key = AccessKey("AKID", "s3cret", "1" * 12, "AIDA", session_token="t0ken")

    assert "s3cret" not in f"{key!r} {key}"
    assert "t0ken" not in f"{key!r} {key}"


def open_caller_of(target: bytes, headers: dict[bytes, bytes]) -> Caller:
    return open_caller(b"POST", target, headers, "000000000000", "home")


def test_an_unsigned_open_caller_is_the_configured_account() -> None:
    assert open_caller_of(b"/", {}) == Caller("000000000000", "home", "000000000000", None)


def test_an_open_caller_has_the_region_of_its_credential() -> None:
    expected = Caller("000000000000", "eu-west-1", "000000000000", "AKIDEXAMPLE")

    assert open_caller_of(b"/", sign_header().headers) == expected
    assert open_caller_of(sign_query().target, {}) == expected


def test_a_twelve_digit_access_key_id_names_the_account_of_an_open_caller() -> None:
    request = sign_header(key=SIGNING_ACCOUNT_KEY)

    caller = open_caller_of(b"/", request.headers)

    assert caller == Caller("210987654321", "eu-west-1", "210987654321", "210987654321")


@pytest.mark.parametrize(
    "authorization",
    [b"Bearer x", b"AWS4-HMAC-SHA256 Credential=", b"Credential=\xff/20150830/r/sqs/aws4_request"],
)
def test_an_unreadable_credential_counts_as_none(authorization: bytes) -> None:
    assert open_caller_of(b"/", {b"authorization": authorization}).account == "000000000000"
