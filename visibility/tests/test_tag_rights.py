"""The rights that changes of tags need: by the tags before and after."""

from __future__ import annotations

import pytest

from visibility.contract.tags import LIFT_PROTECTION, SET_LOSSY_POLICY, rights_to_change

LOSSY, LIFTED = (SET_LOSSY_POLICY,), (LIFT_PROTECTION,)
DROPS = {"holdfast:overflow": "drop-oldest", "holdfast:max-messages": "100"}
LIVES = {"holdfast:ttl": "60"}
ONCE = {"holdfast:delivery": "at-most-once"}
KEPT = LIVES | {"holdfast:expired": "dead-letter"}
PROTECTED = {"holdfast:protect": "on"}


@pytest.mark.parametrize(
    ("before", "after", "rights"),
    [
        ({}, {"team": "a", "holdfast:priority": "strict"}, ()),
        ({}, ONCE, LOSSY),
        (ONCE, {}, ()),
        ({}, {"holdfast:delivery": "at-least-once"}, ()),
        ({}, LIVES, LOSSY),
        ({}, LIVES | {"holdfast:expired": "discard"}, LOSSY),
        ({}, KEPT, ()),
        (KEPT, LIVES, LOSSY),
        (LIVES, KEPT, ()),
        (LIVES, LIVES | {"team": "a"}, ()),
        ({}, DROPS, LOSSY),
        (DROPS, DROPS | {"holdfast:max-messages": "10"}, LOSSY),
        (DROPS, DROPS | {"holdfast:max-bytes": "1024"}, LOSSY),
        ({}, {"holdfast:overflow": "drop-oldest"}, ()),
        ({}, {"holdfast:overflow": "reject", "holdfast:max-messages": "10"}, ()),
        (PROTECTED, {}, LIFTED),
        (PROTECTED, {"holdfast:protect": "off"}, LIFTED),
        (PROTECTED, PROTECTED | {"team": "a"}, ()),
        ({"holdfast:protect": "off"}, {}, ()),
        (PROTECTED, ONCE, LOSSY + LIFTED),
    ],
)
def test_what_loses_messages_and_what_ends_a_protection(
    before: dict[str, str], after: dict[str, str], rights: tuple[str, ...]
) -> None:
    assert rights_to_change(before, after) == rights
