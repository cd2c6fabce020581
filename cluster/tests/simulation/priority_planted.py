"""Deliberate bugs in priority and limits of length, which the simulator must find."""

from __future__ import annotations

import pytest

from cluster.tests.simulation.planting import Plant
from visibility.rules.fair_order import Fair
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


LENGTH_PLANTS: tuple[Plant, ...] = (count_what_is_visible, give_room_twice)
PLANTS: tuple[Plant, ...] = (serve_by_age, forget_levels_at_a_start)
