"""Bugs about an older etcd that the simulator must find."""

from __future__ import annotations

import pytest

from cluster.shards import shard
from cluster.tests.simulation.planting import Plant
from visibility.rules import noted_parts


def write_nothing_back(patch: pytest.MonkeyPatch) -> None:
    """A new leader takes what etcd says."""

    async def believe(*given: object) -> int:
        return 0

    patch.setattr(shard, "write_back", believe)


def note_nothing(patch: pytest.MonkeyPatch) -> None:
    """A shard does not note the parts of its queues."""
    patch.setattr(noted_parts, "note_of", lambda queue: None)


def go_on_as_before(patch: pytest.MonkeyPatch) -> None:
    """A leader does not hear that etcd went back."""
    patch.setattr(shard.Shard, "_etcd_went_back", lambda self: None)


PLANTS: tuple[Plant, ...] = (write_nothing_back, note_nothing, go_on_as_before)
