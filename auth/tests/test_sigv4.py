"""Requests that are accepted or refused, and the wording, for both forms of signing, on both
paths."""

from __future__ import annotations

from hashlib import sha256

import msgspec
import pytest

from auth import CredentialSet, InvalidClientTokenId, SignatureDoesNotMatch, Verifier
from auth.tests.refusing import (
    MISMATCH,
    PAYLOAD,
    PRESIGNED,
    SIGNED,
    UNSIGNED_AMZ,
    make_verifier,
    refusal,
)
from auth.tests.signed_requests import (
    JSON_HEADERS,
    KEY,
    NOW_S,
    TEMPORARY_KEY,
    Request,
    sign_by_hand,
    sign_header,
    sign_query,
)


def test_names_account_region_principal_and_key_of_the_signer() -> None:
    verifier = make_verifier()

    callers = [SIGNED.verify(verifier) for _ in range(3)]

    assert callers[0] is not None
    assert {(c.account, c.region, c.principal, c.access_key_id) for c in callers} == {
        ("123456789012", "eu-west-1", "AIDAEXAMPLE", "AKIDEXAMPLE")
    }
    assert callers[1] is callers[2]


def test_the_principal_of_an_account_itself_is_its_id() -> None:
    of_the_root = msgspec.structs.replace(KEY, user=None)

    assert SIGNED.verify(Verifier(CredentialSet([of_the_root]))).principal == KEY.account


@pytest.mark.parametrize("region", ["eu-west-1", "us-gov-east-1", "home", "x" * 32])
def test_serves_every_region(region: str) -> None:
    assert sign_header(region=region).verify(make_verifier()).region == region


@pytest.mark.parametrize("region", ["EU-WEST-1", "x" * 33, "eu_west_1", "a'b"])
def test_refuses_what_cannot_be_a_region(region: str) -> None:
    error = refusal(sign_header(region=region))

    assert isinstance(error, SignatureDoesNotMatch)
    assert error.message == f"Credential should be scoped to a valid region, not '{region}'."


@pytest.mark.parametrize("separator", [b",", b", ", b" ", b" , "])
def test_reads_the_authorization_header_with_and_without_spaces(separator: bytes) -> None:
    request = SIGNED.with_authorization(b", ", separator)
    verifier = make_verifier()

    assert request.verify(verifier) == request.verify(verifier)


def test_reads_the_authorization_header_in_any_order() -> None:
    _, credential, names, signature = SIGNED.headers[b"authorization"].replace(b",", b"").split()
    request = SIGNED.with_header(
        b"authorization", b"AWS4-HMAC-SHA256 " + b", ".join((signature, names, credential))
    )
    verifier = make_verifier()

    assert request.verify(verifier) == request.verify(verifier)


@pytest.mark.parametrize(
    "date", [b"20260101T120000Z", b"Thu, 01 Jan 2026 12:00:00 GMT"], ids=["basic", "http"]
)
def test_takes_the_date_header_where_x_amz_date_is_absent(date: bytes) -> None:
    request = sign_by_hand(headers={b"host": b"h", b"date": date})

    assert request.verify(make_verifier()).access_key_id == "AKIDEXAMPLE"


def test_of_both_headers_x_amz_date_counts() -> None:
    dates = {b"date": b"Thu, 01 Jan 1970 00:00:00 GMT", b"x-amz-date": b"20260101T120000Z"}
    request = sign_by_hand(headers={b"host": b"h", **dates})

    assert request.verify(make_verifier()).access_key_id == "AKIDEXAMPLE"


def test_folds_blanks_in_signed_headers() -> None:
    request = sign_header(headers=JSON_HEADERS | {"X-Amz-Note": "a b c"})
    verifier = make_verifier()

    for value in (b"a b c", b"  a   b c ", b"a \t b\tc\t"):
        folded = request.with_header(b"x-amz-note", value)
        assert folded.verify(verifier).account == KEY.account
        # The short road answers with the very same Caller: it too must fold.
        assert folded.verify(verifier) is folded.verify(verifier)


def test_serves_a_signature_fifteen_minutes_old_and_one_fifteen_minutes_ahead() -> None:
    verifier = make_verifier()

    for now_s in (NOW_S, NOW_S + 900, NOW_S - 900):
        assert SIGNED.verify(verifier, now_s).account == KEY.account


def test_refuses_a_signature_older_than_fifteen_minutes() -> None:
    error = refusal(SIGNED, now_s=NOW_S + 901)

    assert isinstance(error, SignatureDoesNotMatch)
    assert error.message == (
        "Signature expired: 20260101T120000Z is now earlier than 20260101T120001Z "
        "(20260101T121501Z - 15 min.)"
    )


def test_refuses_a_signature_more_than_fifteen_minutes_ahead() -> None:
    error = refusal(SIGNED, now_s=NOW_S - 901)

    assert isinstance(error, SignatureDoesNotMatch)
    assert error.message == (
        "Signature not yet current: 20260101T120000Z is still later than 20260101T115959Z "
        "(20260101T114459Z + 15 min.)"
    )


def test_serves_a_presigned_request_until_it_expires() -> None:
    request = sign_query(expires_s=3_600)

    assert request.verify(make_verifier(), NOW_S + 3_600).principal == KEY.principal
    error = refusal(request, now_s=NOW_S + 3_601)
    assert error.message == (
        "Signature expired: 20260101T120000Z is now earlier than 20260101T120001Z "
        "(20260101T130001Z - 60 min.)"
    )


def test_a_presigned_request_without_expires_holds_fifteen_minutes() -> None:
    unexpiring = msgspec.structs.replace(
        PRESIGNED, target=PRESIGNED.target.replace(b"&X-Amz-Expires=60", b"")
    )

    assert "does not match" in refusal(unexpiring, now_s=NOW_S + 900).message
    assert "Signature expired" in refusal(unexpiring, now_s=NOW_S + 901).message


@pytest.mark.parametrize("make", [sign_header, sign_query])
def test_serves_temporary_credentials(make: type) -> None:
    request = make(key=TEMPORARY_KEY)
    verifier = make_verifier()

    assert request.verify(verifier) == request.verify(verifier)
    assert request.verify(verifier).principal == "AIDAANN"


def test_a_payload_hash_of_the_body_is_accepted() -> None:
    request = sign_header(headers=PAYLOAD)
    verifier = make_verifier()

    assert request.verify(verifier) == request.verify(verifier)
    other = msgspec.structs.replace(request, body=b"{ }")
    assert refusal(other, verifier=verifier).message == MISMATCH


def test_refuses_a_disabled_key_and_one_that_has_expired() -> None:
    disabled = Verifier(CredentialSet([msgspec.structs.replace(KEY, enabled=False)]))
    expiring = Verifier(
        CredentialSet([msgspec.structs.replace(KEY, expires_at_ms=int(NOW_S + 60) * 1000)])
    )

    assert isinstance(refusal(SIGNED, verifier=disabled), InvalidClientTokenId)
    for now_s in (NOW_S, NOW_S + 59.9):
        SIGNED.verify(expiring, now_s)
    error = refusal(SIGNED, verifier=expiring, now_s=NOW_S + 60)
    assert isinstance(error, InvalidClientTokenId)
    assert len(expiring._signers) == 0


def test_the_first_request_of_a_day_notes_the_use_of_its_key() -> None:
    verifier = make_verifier()
    day = int(NOW_S // 86_400)
    refusal(SIGNED.with_header(b"x-amz-target", b"other"), verifier=verifier)
    assert verifier.used == {}
    SIGNED.verify(verifier)
    assert verifier.used == {KEY.access_key_id: day}
    tomorrow_s = NOW_S + 86_400
    sign_header(at_s=tomorrow_s).verify(verifier, tomorrow_s)
    assert verifier.used == {KEY.access_key_id: day + 1}
    verifier.used.clear()

    sign_header(at_s=tomorrow_s).verify(verifier, tomorrow_s)
    assert verifier.used == {}, "the short path has no part in it"


def test_a_known_signer_may_not_add_an_unsigned_amz_header() -> None:
    verifier = make_verifier()
    plain = sign_header(headers={})
    for _ in range(2):
        plain.verify(verifier)

    with pytest.raises(SignatureDoesNotMatch, match="'X-Amz-Target' must be"):
        UNSIGNED_AMZ.verify(verifier)


def test_replaced_credentials_take_effect_at_once() -> None:
    verifier = make_verifier()
    SIGNED.verify(verifier)

    verifier.replace(CredentialSet([TEMPORARY_KEY]))

    assert isinstance(refusal(SIGNED, verifier=verifier), InvalidClientTokenId)


def test_a_refusal_repeats_no_control_characters_and_no_flood() -> None:
    error = refusal(SIGNED.with_header(b"x-amz-date", b"\x00\xff<" + b"x" * 100_000))

    assert "Got '??<xxx" in error.message
    assert len(error.message) < 500


BY_HAND = sign_by_hand()
HASH_OF_ANOTHER = {b"x-amz-content-sha256": sha256(b"another").hexdigest().encode()}
HASH_OF_THE_BODY = {b"x-amz-content-sha256": sha256(b"{}").hexdigest().encode()}


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (
            sign_by_hand(date=b"20260101T235959Z"),
            sign_by_hand(date=b"20260102T000001Z", day=b"20260101"),
        ),
        (BY_HAND, sign_by_hand(method=b"PO\nST")),
        (BY_HAND, sign_by_hand(headers={b"host": b"h\nh", b"x-amz-date": b"20260101T120000Z"})),
        (sign_by_hand(more=HASH_OF_THE_BODY), sign_by_hand(more=HASH_OF_ANOTHER)),
    ],
    ids=["scope of another day", "line feed in method", "line feed in value", "payload hash"],
)
def test_a_right_signature_over_a_forbidden_request_is_refused(good: Request, bad: Request) -> None:
    now_s = NOW_S + 12 * 3_600 if good.headers[b"x-amz-date"] > b"20260101T2" else NOW_S
    warm = make_verifier()
    good.verify(warm, now_s)
    if now_s != NOW_S:
        sign_by_hand(date=b"20260102T000001Z").verify(warm, now_s)

    for verifier in (make_verifier(), warm):
        with pytest.raises(SignatureDoesNotMatch):
            bad.verify(verifier, now_s)


def test_the_hash_of_the_body_may_be_sent_unsigned_and_must_be_right() -> None:
    """The PyPI package aws-requests-auth sends it so."""
    request = sign_header(body=b"{}")
    verifier = make_verifier()
    (hash_name,) = HASH_OF_THE_BODY
    request.verify(verifier)

    for _ in range(3):
        caller = request.with_header(hash_name, HASH_OF_THE_BODY[hash_name]).verify(verifier)
        assert caller.access_key_id == KEY.access_key_id
        with pytest.raises(SignatureDoesNotMatch):
            request.with_header(hash_name, HASH_OF_ANOTHER[hash_name]).verify(verifier)


def test_only_the_parameter_named_signature_is_taken_for_one() -> None:
    first, second = sign_header(body=b"1"), sign_header(body=b"2")
    signatures = [request.headers[b"authorization"][-64:] for request in (first, second)]
    prefix = first.headers[b"authorization"] + b", FooSignature="
    verifier = make_verifier()
    first.with_header(b"authorization", prefix + signatures[0]).verify(verifier)

    with pytest.raises(SignatureDoesNotMatch):
        second.with_header(b"authorization", prefix + signatures[1]).verify(verifier)
