"""Deliberate bugs in priority and limits of length, which the simulator must find."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.tests.simulation.planting import Plant
from visibility.rules import levelling
from visibility.rules.fair_order import Fair
from visibility.rules.length import Overflow
from visibility.rules.priority_order import ByPriority
from visibility.rules.room import Room
from visibility.state.queue_state import QueueState


def serve_by_age(patch: pytest.MonkeyPatch) -> None:
    """A receive gives the oldest message, whatever its priority."""
    patch.setattr(ByPriority, "choose", Fair.choose)


def forget_levels_at_a_start(patch: pytest.MonkeyPatch) -> None:
    """A new leader does not know which messages have priorities."""
    of = QueueState.of

    def load(*args: object) -> QueueState:
        queue = of(*args)  # type: ignore[arg-type]
        queue.levels.clear()
        return queue

    patch.setattr(QueueState, "of", load)


def count_what_is_visible(patch: pytest.MonkeyPatch) -> None:
    """A full queue has room as soon as its messages are in flight."""
    patch.setattr(QueueState, "stored", QueueState.visible)


def give_room_twice(patch: pytest.MonkeyPatch) -> None:
    """The entries of a batch do not count for those behind them."""
    patch.setattr(Room, "take", lambda room, size: None)


def count_what_departed_as_gone(patch: pytest.MonkeyPatch) -> None:
    """A send takes the place of a message that may come back from another shard."""
    before = Overflow.__init__

    def begin(overflow: Overflow, *given: Any) -> None:
        before(overflow, *given)
        overflow.leaves_early = False

    patch.setattr(Overflow, "__init__", begin)


def slow_nobody_down(patch: pytest.MonkeyPatch) -> None:
    """Sends are accepted however many messages wait."""
    patch.setattr(levelling, "is_throttled", lambda *given: False)


CROWDED_PLANTS: tuple[Plant, ...] = (count_what_departed_as_gone, slow_nobody_down)
LENGTH_PLANTS: tuple[Plant, ...] = (count_what_is_visible, give_room_twice)
PLANTS: tuple[Plant, ...] = (serve_by_age, forget_levels_at_a_start)
