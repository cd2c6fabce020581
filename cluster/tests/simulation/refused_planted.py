"""Bugs about receives that are answered 503 that the simulators must find, planted into the
production code for the time of a test."""

from __future__ import annotations

import pytest

from cluster.shards.answers import RefusedReceives
from cluster.tests.simulation.cluster_planted import Plant
from visibility.contract.operations import UndoReceive
from visibility.rules import retries
from visibility.rules.retries import MEMORABLE


def keep_what_was_refused(patch: pytest.MonkeyPatch) -> None:
    """A receive that was answered 503 counts if its Entry is durable."""
    patch.setattr(RefusedReceives, "note", lambda self, under_way: None)


def undo_nothing(patch: pytest.MonkeyPatch) -> None:
    """A leader does not look for a receive that is to be undone."""
    known = {kind: row for kind, row in MEMORABLE.items() if kind is not UndoReceive}
    patch.setattr(retries, "MEMORABLE", known)


def undo_the_answer_only(patch: pytest.MonkeyPatch) -> None:
    """A leader forgets what it answered, and leaves the messages hidden."""
    patch.setattr(retries, "give_back", lambda *given: (None, ()))


PLANTS: tuple[Plant, ...] = (keep_what_was_refused,)
CLUSTER_PLANTS: tuple[Plant, ...] = (undo_nothing, undo_the_answer_only)
