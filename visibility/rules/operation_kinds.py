"""OperationKind: the row of an operation of shards. Each stands with its feature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from visibility.contract.model import Request
from visibility.contract.operations import Operation
from visibility.rules.decided import Outcome
from visibility.state.shard_state import ShardState
from visibility.state.short_answers import ShortAnswer
from visibility.state.stamp import Stamp

Decide = Callable[[ShardState, Request, Stamp], Outcome]
"""The answer and the events of a request. Raises QueueError for a refusal; changes nothing itself,
and reads what is not in memory through `ShardState.rows`."""


class Replay(NamedTuple):
    """The remembered part of an answer, and how a retry gets that answer again."""

    shorten: Callable[[Request, Any], ShortAnswer]
    """The part to remember."""
    forms: tuple[type, ...]
    """Types of that part. Another one belongs to another operation with the same request id: a
    receive's messages are returned under its id."""
    repeat: Callable[[Any, ShardState, Request, Stamp], Outcome]
    """The decision that gives the remembered answer again."""


class OperationKind(NamedTuple):
    """One operation of shards."""

    decide: Decide
    answer: type | None
    """The type of its answer."""
    replay: Replay | None = None
    """None if it may be decided twice."""
    is_early: bool = False
    """True if its answer may wait for the leader's own disk instead of a majority (`async`).

    What may be lost must not be received: the handle of a lost message would else name the next one
    that gets its sequence, and delete that. Nor does the service itself act on it, as between
    shards or for the archive.
    """
    is_fixed: bool = False
    """True if it is about one deleted or purged queue, never about the queue that continues it. It
    then never goes to another host, whose leader may know another queue."""


Operations = dict[type[Operation], OperationKind]


def _nothing(request: Request, answer: None) -> ShortAnswer:
    return None


def _nothing_again(short: None, shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    return None, ()


NOTHING = Replay(_nothing, (type(None),), _nothing_again)
"""The answer says nothing."""
