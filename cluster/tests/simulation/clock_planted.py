"""Deliberate bugs in the order by the sender's clock, which the simulator must find."""

from __future__ import annotations

import pytest

from cluster.tests.simulation.planting import Plant
from visibility.rules import collected_sends
from visibility.rules.sender_order import OrderPassed, SenderOrder
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState


def order_by_arrival(patch: pytest.MonkeyPatch) -> None:
    """A message waits a window from its arrival on."""
    patch.setattr(collected_sends, "min", lambda sender_ms, now_ms: now_ms, raising=False)


def keep_late_messages(patch: pytest.MonkeyPatch) -> None:
    """Late messages join the line."""
    patch.setattr(SenderOrder, "moves_late", lambda *_: False)


def forget_the_order_at_a_start(patch: pytest.MonkeyPatch) -> None:
    """A new leader does not know which messages ended their wait."""
    of = QueueState.of

    def load(*args: object) -> QueueState:
        queue = of(*args)  # type: ignore[arg-type]
        queue.passed_ms = 0
        return queue

    patch.setattr(QueueState, "of", load)


def run_ahead(patch: pytest.MonkeyPatch) -> None:
    """The order passes by messages that still have time."""
    apply = OrderPassed.apply

    def apply_and_run(event: OrderPassed, shard: ShardState) -> None:
        apply(event, shard)
        shard.queue(event.queue_id).passed_ms += 5_000

    patch.setattr(OrderPassed, "apply", apply_and_run)


PLANTS: tuple[Plant, ...] = (
    order_by_arrival,
    keep_late_messages,
    forget_the_order_at_a_start,
    run_ahead,
)
