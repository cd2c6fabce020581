"""KnownTokens: no token that the rows remember is called new."""

from __future__ import annotations

from visibility.state.known_tokens import KnownTokens

TOKEN, OTHER = b"t" * 16, b"o" * 16
MINUTE_MS = 60_000


def nothing(begin_ms: int) -> bool:
    return True


def something(begin_ms: int) -> bool:
    return False


def test_a_token_may_be_there_once_it_was_recorded_in_the_same_span() -> None:
    tokens = KnownTokens()

    assert not tokens.may_have(0, TOKEN, nothing)
    assert not tokens.may_have(MINUTE_MS, TOKEN, nothing)
    tokens.add(0, TOKEN)
    assert tokens.may_have(0, TOKEN, nothing)
    assert not tokens.may_have(0, OTHER, nothing)
    assert not tokens.may_have(MINUTE_MS, TOKEN, nothing)


def test_every_token_may_be_in_a_span_that_has_rows_from_before_a_start() -> None:
    tokens = KnownTokens()

    assert tokens.may_have(0, TOKEN, something)
    assert tokens.may_have(0, OTHER, nothing), "the rows are looked at once"


def test_a_span_that_was_left_long_ago_is_looked_at_again() -> None:
    tokens = KnownTokens()
    for begin_ms in range(0, 6 * MINUTE_MS, MINUTE_MS):
        assert not tokens.may_have(begin_ms, TOKEN, nothing)

    tokens.add(0, TOKEN)  # nobody knows this span any more

    assert tokens.may_have(0, TOKEN, something)
