"""Trusted proxies, and the parts of their headers that count."""

from __future__ import annotations

import pytest

from sqs_api.settings.proxies import Origin, TrustedProxies, source_address

DIRECT = Origin("10.0.0.1", False)
TRUSTED = TrustedProxies("10.0.0.0/8, 2001:db8::/32")


@pytest.mark.parametrize(
    ("forwarded", "expected"),
    [
        ("", "10.0.0.1"),
        ("192.0.2.1", "192.0.2.1"),
        ("198.51.100.1, 192.0.2.1", "192.0.2.1"),
        ("198.51.100.1, 192.0.2.1, 10.0.0.2", "192.0.2.1"),
        ("198.51.100.1,192.0.2.1,10.0.0.2,2001:db8::1", "192.0.2.1"),
        ("10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("192.0.2.1:1234", "192.0.2.1"),
        ("[2001:4860::1]:1234", "2001:4860::1"),
        ("2001:4860:0::1", "2001:4860::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("192.0.2.1, unknown", "10.0.0.1"),
        ("192.0.2.1, unknown, 10.0.0.2", "10.0.0.2"),
        ("192.0.2.1,", "10.0.0.1"),
        ("\xff, 192.0.2.1", "192.0.2.1"),
        ("192.0.2.1, " + "10.0.0.2, " * 50 + "10.0.0.2", "10.0.0.2"),
    ],
)
def test_the_rightmost_address_that_is_not_trusted_counts(forwarded: str, expected: str) -> None:
    headers = {b"x-forwarded-for": forwarded.encode("latin-1")}

    assert TRUSTED.origin(DIRECT, headers).source_ip == expected


def test_an_origin_that_is_remembered_is_of_its_own_connection_and_headers() -> None:
    proxies = TrustedProxies("10.0.0.0/8")
    secure, other = Origin("10.0.0.1", True), Origin("10.0.0.2", False)
    named = {b"x-forwarded-for": b"192.0.2.1"}
    over_tls = {**named, b"x-forwarded-proto": b"https"}

    for _ in range(2):
        assert proxies.origin(secure, {}) == secure
        assert proxies.origin(other, {}) == other
        assert proxies.origin(secure, named) == Origin("192.0.2.1", True)
        assert proxies.origin(other, named) == Origin("192.0.2.1", False)
        assert proxies.origin(other, over_tls) == Origin("192.0.2.1", True)


@pytest.mark.parametrize(
    ("sent", "direct", "expected"),
    [
        (b"https", False, True),
        (b"HTTPS", False, True),
        (b"http", True, False),
        (b"http, https", False, True),
        (b"https,http", False, False),
        (b"", True, True),
        (b"", False, False),
        (b"wss", True, False),
    ],
)
def test_the_nearest_proxys_scheme_counts(sent: bytes, direct: bool, expected: bool) -> None:
    headers = {b"x-forwarded-proto": sent} if sent else {}

    assert TRUSTED.origin(Origin("10.0.0.1", direct), headers).is_secure is expected


@pytest.mark.parametrize(
    ("address", "is_trusted"),
    [("10.1.2.3", True), ("2001:db8::5", True), ("11.0.0.1", False), ("", False), ("::1", False)],
)
def test_networks_are_trusted(address: str, is_trusted: bool) -> None:
    assert TRUSTED.trusts(address) is is_trusted
    assert not TrustedProxies("").trusts(address)


@pytest.mark.parametrize(
    ("peername", "expected"),
    [
        (("127.0.0.1", 1), "127.0.0.1"),
        (("::ffff:127.0.0.1", 1, 0, 0), "127.0.0.1"),
        (("fe80::1%2", 1, 0, 2), "fe80::1"),
        ("", ""),
        (None, ""),
    ],
)
def test_address_of_a_transport(peername: object, expected: str) -> None:
    assert source_address(peername) == expected
