"""A few power losses on each file system that can be had; `make power-loss` runs two hundred."""

from __future__ import annotations

import os

import pytest

from compat_tests import kill9, power_loss
from compat_tests.loop_disk import why_not

pytestmark = [pytest.mark.slow]
if reason := why_not("ext4"):
    pytestmark.append(pytest.mark.skip(reason=f"power cannot be cut here: {reason}"))
if "COMPAT_ENDPOINT" in os.environ:
    pytestmark.append(pytest.mark.skip(reason="aimed at a service that this suite did not start"))


def test_power_loss_takes_nothing_that_was_acknowledged() -> None:
    summary, broken = power_loss.run("ext4", kill9.run_and_tell, rounds=1, seed=9324)

    assert not broken, f"{summary}\n{broken[:20]}"


def test_power_loss_takes_what_was_not_synced() -> None:
    """Again if everything was on disk by chance: on a slow machine little was sent before the cut."""
    for seed in range(9324, 9334):
        _, broken = power_loss.run("ext4", kill9.run_and_tell, rounds=1, seed=seed, durability="os")
        if any("acknowledged and never seen" in line for line in broken):
            return
    pytest.fail("nothing was lost without a sync, so the other test proves nothing")
