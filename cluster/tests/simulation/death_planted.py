"""Deliberate bugs in causes of death and messages of deleted queues, which the simulator must
find."""

from __future__ import annotations

import pytest

from cluster.tests.simulation.planting import Plant
from visibility.contract.death import EXPIRED, Death
from visibility.rules import dead_letters, move_steps, on_delete


def forget_hops(patch: pytest.MonkeyPatch) -> None:
    """A message goes round in a circle of queues for ever."""
    patch.setattr(dead_letters, "next_death", lambda before, cause, at_ms: Death(cause, at_ms))


def take_what_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    """A message of a deleted queue leaves while a consumer has it."""
    patch.setattr(on_delete._Step, "_is_in_flight", lambda step, sequence: False)


def tell_another_cause(patch: pytest.MonkeyPatch) -> None:
    """Messages of a deleted queue say that they expired."""
    patch.setattr(on_delete, "QUEUE_DELETED", EXPIRED)


def forget_first_ids(patch: pytest.MonkeyPatch) -> None:
    """A redriven message does not know what it was at first."""
    patch.setattr(move_steps, "after_redrive", lambda message, lease, edited_at_ms: None)


PLANTS: tuple[Plant, ...] = (
    forget_hops,
    take_what_is_in_flight,
    tell_another_cause,
    forget_first_ids,
)
