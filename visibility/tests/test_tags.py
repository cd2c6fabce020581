"""Tags of this service: a typing error in a name or a value is refused, other tags are the
user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from visibility.contract.actions import check
from visibility.contract.attributes import checked_tags
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.operations import CreateQueue, TagQueue
from visibility.contract.tags import OWN_TAGS, without_effect


def test_the_known_tags_take_their_values() -> None:
    given = [{key: value} for key, row in OWN_TAGS.items() for value in row.choices]

    assert given == [
        {"holdfast:archive": "expired"},
        {"holdfast:archive": "all"},
        {"holdfast:archive": "none"},
        {"holdfast:protect": "on"},
        {"holdfast:protect": "off"},
        {"holdfast:deletion-protection": "on"},
        {"holdfast:deletion-protection": "off"},
        {"holdfast:deliver-at": "on"},
        {"holdfast:deliver-at": "off"},
        {"holdfast:expired": "discard"},
        {"holdfast:expired": "dead-letter"},
        {"holdfast:expired": "archive"},
        {"holdfast:priority": "weighted"},
        {"holdfast:priority": "strict"},
        {"holdfast:overflow": "reject"},
        {"holdfast:overflow": "drop-oldest"},
        {"holdfast:overflow": "dead-letter"},
        {"holdfast:overflow": "archive"},
        {"holdfast:delivery": "at-least-once"},
        {"holdfast:delivery": "at-most-once"},
        {"holdfast:on-delete": "discard"},
        {"holdfast:on-delete": "dead-letter"},
        {"holdfast:order": "sender-clock"},
    ]
    for tags in given[:-1]:  # the last one needs another
        assert checked_tags("q", {}, tags) == tags
        check(TagQueue("q", tags))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "holdfast:archive",
            "everything",
            "Value everything for tag holdfast:archive is invalid. Valid values are: expired, all, "
            "none.",
        ),
        (
            "holdfast:protect",
            "On",
            "Value On for tag holdfast:protect is invalid. Valid values are: on, off.",
        ),
        (
            "holdfast:archiv",
            "all",
            "Tag holdfast:archiv is unknown. "
            "Tags beginning with holdfast: are: holdfast:archive, holdfast:protect, "
            "holdfast:deletion-protection, holdfast:retry-min, holdfast:retry-max, "
            "holdfast:receive-rate, holdfast:max-in-flight, holdfast:throttle-depth, "
            "holdfast:throttle-age, holdfast:deliver-at, holdfast:ttl, holdfast:expired, "
            "holdfast:priority, holdfast:max-messages, holdfast:max-bytes, holdfast:overflow, "
            "holdfast:delivery, holdfast:on-delete, holdfast:order, holdfast:order-window, "
            "holdfast:late-queue.",
        ),
        (
            "Holdfast:archive",
            "all",
            "Tag Holdfast:archive is unknown. "
            "Tags beginning with holdfast: are: holdfast:archive, holdfast:protect, "
            "holdfast:deletion-protection, holdfast:retry-min, holdfast:retry-max, "
            "holdfast:receive-rate, holdfast:max-in-flight, holdfast:throttle-depth, "
            "holdfast:throttle-age, holdfast:deliver-at, holdfast:ttl, holdfast:expired, "
            "holdfast:priority, holdfast:max-messages, holdfast:max-bytes, holdfast:overflow, "
            "holdfast:delivery, holdfast:on-delete, holdfast:order, holdfast:order-window, "
            "holdfast:late-queue.",
        ),
    ],
)
def test_unknown_tags_and_values_of_ours_are_refused(key: str, value: str, message: str) -> None:
    for refused in (
        lambda: check(TagQueue("q", {"team": "shop", key: value})),
        lambda: check(CreateQueue("q", tags_on_create={key: value})),
        lambda: checked_tags("q", {}, {key: value}),
    ):
        with pytest.raises(InvalidParameterValue) as caught:
            refused()
        assert caught.value.message == message


@pytest.mark.parametrize("key", ["holdfast", "my:holdfast:archive", "holdfast-archive"])
def test_other_tags_take_any_value(key: str) -> None:
    assert checked_tags("q", {}, {key: "anything"}) == {key: "anything"}


def test_a_tag_of_standard_queues_is_refused_for_a_fifo_queue() -> None:
    tags = {"holdfast:deliver-at": "on"}

    assert checked_tags("q", {}, tags) == tags
    with pytest.raises(InvalidParameterValue, match=r"holdfast:deliver-at is not valid for a FIFO"):
        checked_tags("q.fifo", {}, tags)


@pytest.mark.parametrize("other", ["retry-min", "max-in-flight"])
def test_no_second_delivery_and_none_in_flight_contradict_at_most_once(other: str) -> None:
    once, useless = {"holdfast:delivery": "at-most-once"}, {f"holdfast:{other}": "9"}

    for before, given in ((once, useless), (useless, once), ({}, once | useless)):
        with pytest.raises(InvalidParameterValue, match=f"Tag holdfast:{other} is not valid with"):
            checked_tags("q", before, given)
    least = {"holdfast:delivery": "at-least-once"}
    assert checked_tags("q", useless, least) == useless | least


@pytest.mark.parametrize("tag", ["holdfast:expired", "holdfast:overflow"])
def test_a_queue_that_archives_nothing_sends_nothing_to_the_archive(tag: str) -> None:
    nothing, archived = {"holdfast:archive": "none"}, {tag: "archive"}

    for before, given in ((nothing, archived), (archived, nothing), ({}, nothing | archived)):
        with pytest.raises(InvalidParameterValue) as caught:
            checked_tags("q", before, given)
        assert caught.value.message == (
            f"Tag {tag} with value archive needs an archive, but the queue has tag "
            "holdfast:archive with value none."
        )
    assert checked_tags("q", nothing | archived, {"team": "shop"})
    assert checked_tags("q", nothing, {tag: "dead-letter"})


def test_a_tag_from_before_does_not_keep_others_from_being_set() -> None:
    before = {"holdfast:archive": "everything"}

    assert checked_tags("q", before, {"team": "shop"}) == before | {"team": "shop"}


def test_each_tag_has_a_meaning_of_one_sentence_and_a_row_in_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "visibility/POLICIES.md").read_text()

    for key, row in OWN_TAGS.items():
        assert f"| `{key}` |" in guide
        assert row.meaning.endswith(".")
        assert row.values


@pytest.mark.parametrize(
    ("tags", "idle"),
    [
        ({"team": "a", "holdfast:priority": "strict"}, []),
        ({"holdfast:overflow": "drop-oldest"}, ["holdfast:overflow"]),
        ({"holdfast:overflow": "drop-oldest", "holdfast:max-bytes": "1024"}, []),
        ({"holdfast:retry-max": "5"}, ["holdfast:retry-max"]),
        ({"holdfast:order": "sender-clock"}, ["holdfast:order"]),
        (
            {"holdfast:order-window": "5", "holdfast:late-queue": "arn:aws:sqs:r:0:q"},
            ["holdfast:order-window", "holdfast:late-queue"],
        ),
    ],
)
def test_a_tag_that_lost_the_one_it_needs_has_no_effect(
    tags: dict[str, str], idle: list[str]
) -> None:
    assert list(without_effect(tags, has_dead_letters=True)) == idle


def test_dead_letters_need_a_queue_for_them() -> None:
    tags = {
        "holdfast:expired": "dead-letter",
        "holdfast:on-delete": "dead-letter",
        "holdfast:overflow": "dead-letter",
        "holdfast:max-messages": "5",
    }
    kept = {"holdfast:expired": "archive", "holdfast:on-delete": "discard"}

    assert list(without_effect(tags, has_dead_letters=False)) == list(tags)[:3]
    assert without_effect(tags, has_dead_letters=True) == {}
    assert without_effect(kept, has_dead_letters=False) == {}
