"""MD5 of message attributes against values recorded from AWS."""

from __future__ import annotations

import hashlib

import pytest

from visibility.contract.digests import SMALL_BYTES_MAX, md5_of_attributes, md5_of_body

GENERAL = {"General": ("String", b"Kenobi")}
HELLO = {"Hello": ("String", b"There")}
HELP = {"Help.Me": ("String", b"Me")}
TRACE = b"Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
PARENT = b"traceparent\x1e00-774062d6c37081a5a0b9b5b88e30627c-2d2482211f6489da-01"

RECORDED = [
    ({"k": ("String", b"x")}, "a45daa70926828a2f0a1db3418e6feb4"),
    ({"MyAttribute": ("String", b"foobar")}, "adb59cd4678ea5a855436b949cd07ab6"),
    ({"Foo": ("String", b"Bar")}, "ae7155c6026991b6d54b11589678bf9c"),
    ({"timestamp": ("Number", b"1493147359900")}, "235c5c510d26fb653d073faed50ae77c"),
    ({"attr1": ("Binary", PARENT)}, "8cbe4db156db8a94db8b801b7addb984"),
    (HELP | HELLO | GENERAL, "4c360f3fdafd970e05fae2f149d997f5"),
    (HELLO | GENERAL, "fca026605781cb4126a1e9044df24232"),
    (HELLO, "a311262e065454b75da111d535b8dacd"),
    (HELP | HELLO, "83fee93c1bcd8b9a5a923ffacdc636c7"),
    ({"AWSTraceHeader": ("String", TRACE)}, "5ae4d5d7636402d80f4eb6d213245a88"),
]


@pytest.mark.parametrize(("attributes", "digest"), RECORDED)
def test_attributes_have_the_digest_recorded_from_aws(
    attributes: dict[str, tuple[str, bytes]], digest: str
) -> None:
    assert md5_of_attributes(attributes) == digest


@pytest.mark.parametrize("size", [0, 1, SMALL_BYTES_MAX, SMALL_BYTES_MAX + 1, 1 << 20])
def test_small_and_large_bodies_have_the_same_kind_of_digest(size: int) -> None:
    body = b"x" * size

    assert md5_of_body(body) == hashlib.md5(body, usedforsecurity=False).digest()
