"""Digests of ids: different where they must differ, the same for ever."""

from __future__ import annotations

import pytest

from visibility.content.id_digests import (
    DIGEST_BYTES,
    UNGROUPED,
    attempt_digest,
    deduplication_digest,
    group_digest,
)


def test_digests_lie_on_disk_and_never_change() -> None:
    assert group_digest("g").hex() == "47a9c4be1f1dd27d600d4a4c60f42c3b"
    assert deduplication_digest(None, "1").hex() == "53d8eb11c03d5d9ccde91eacc1bdc30a"
    assert deduplication_digest("g", "1").hex() == "89cacd8ac13b38435602127e7a68fd8b"
    assert attempt_digest("x").hex() == "5300c738d8c2586224abb58902db4cd5"


@pytest.mark.parametrize("text", ["", "g", "é" * 100, "x" * 128])
def test_digest_has_its_length_and_is_not_the_one_of_no_group(text: str) -> None:
    for digest in (group_digest(text), deduplication_digest(text, text), attempt_digest(text)):
        assert len(digest) == DIGEST_BYTES
        assert digest != UNGROUPED


def test_same_text_means_something_else_for_each_purpose() -> None:
    digests = {
        group_digest("x"),
        deduplication_digest(None, "x"),
        deduplication_digest("x", "x"),
        deduplication_digest("", "x"),
        attempt_digest("x"),
    }

    assert len(digests) == 5


def test_group_and_id_are_told_apart() -> None:
    pairs = [("a", "bc"), ("ab", "c"), ("", "abc"), ("1", ":1"), ("1:", "1"), ("11", "")]

    assert len({deduplication_digest(group, text) for group, text in pairs}) == len(pairs)


def test_queue_scope_is_not_the_scope_of_an_empty_group() -> None:
    assert deduplication_digest(None, "1") != deduplication_digest("", "1")
