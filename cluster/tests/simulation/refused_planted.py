"""Bugs about receives that are answered 503 that the simulators must find, planted into the
production code for the time of a test."""

from __future__ import annotations

import pytest

from cluster.shards.answers import RefusedReceives
from cluster.tests.simulation.planting import Plant, change_operation
from visibility.rules import acknowledge
from visibility.rules.acknowledge import UndoReceive


def keep_what_was_refused(patch: pytest.MonkeyPatch) -> None:
    """A receive that was answered 503 counts if its Entry is durable."""
    patch.setattr(RefusedReceives, "note", lambda self, under_way: None)


def undo_nothing(patch: pytest.MonkeyPatch) -> None:
    """A leader does not look for a receive that is to be undone."""
    change_operation(patch, UndoReceive, replay=None)


def undo_the_answer_only(patch: pytest.MonkeyPatch) -> None:
    """A leader forgets what it answered, and leaves the messages hidden."""
    patch.setattr(acknowledge, "give_back", lambda *given: (None, ()))


PLANTS: tuple[Plant, ...] = (keep_what_was_refused,)
CLUSTER_PLANTS: tuple[Plant, ...] = (undo_nothing, undo_the_answer_only)
