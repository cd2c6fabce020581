"""Pulses: what time does to the queues in a Turn, by events that it applies and records.

What happens to one queue at its time is in `pulse.py`. Damage that a rule meets is quarantined, or
the queue is rebuilt.
"""

from __future__ import annotations

from collections.abc import Sequence

from visibility.rows.row_codec import DamagedRecord
from visibility.rules.decided import Damage
from visibility.rules.events import Event, Notice
from visibility.rules.pulse import STEPS, STEPS_OF_DELETED, Definition, StepOf
from visibility.rules.quarantine import damage_notice, is_for_others, quarantine
from visibility.state.rows import MessagesMissing
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

PULSES_MAX = 100
"""Queues that get a pulse in one Turn; bounds the time for which the event loop is held."""
PULSE_MESSAGES_MAX = 1_000
"""Messages that pulses move or remove in one Turn, for the same reason; other queues wait for the
next. A KiB that is archived or sealed anew counts as one more message."""
_FOR_PULSES = 4
"""Pulses stop at this part of a Turn's bounds, so that requests continue beside them."""
_PULSE_AGAIN_MS = 60_000
"""Time until the next pulse of a queue whose pulse failed."""
_UNKNOWN_AGAIN_MS = 1_000
"""Time until the next pulse of a queue whose definition has not reached this host yet."""


class Pulses:
    """The part of a Turn that needs no requests."""

    __slots__ = ("_stamp", "changed", "damage", "notices", "state")

    def __init__(self, state: ShardState, stamp: Stamp) -> None:
        self.state = state
        self._stamp = stamp
        self.changed: dict[int, None] = {}
        """Queues whose own rows need recording, in order."""
        self.notices: list[Notice] = []
        self.damage: Damage | None = None

    def do(self, event: Event) -> None:
        """Apply an event to memory and record its row changes."""
        raise NotImplementedError

    def run_due(self) -> None:
        """Run those of due queues, up to a bound."""
        due, is_full = self.state.due, self.state.rows.is_full
        handled = 0
        for queue_id in list(due)[:PULSES_MAX]:
            if handled >= PULSE_MESSAGES_MAX or is_full(_FOR_PULSES):
                break
            del due[queue_id]
            definition = self.state.definitions.queue_of_id(queue_id)
            if definition is not None:
                handled += self._run(queue_id, STEPS, definition)
                continue
            queue = self.state.queues.get(queue_id)
            if queue is not None and queue_id > self.state.definitions.highest_queue_id:
                self.state.plan_pulse(queue, self._stamp.now_ms + _UNKNOWN_AGAIN_MS)
            handled += self._run(queue_id, STEPS_OF_DELETED, None)

    def _run(
        self, queue_id: int, steps: Sequence[StepOf[Definition]], definition: Definition
    ) -> int:
        """Run the steps of one queue; returns the number of handled messages."""
        handled = 0
        for step in steps:
            if self.state.rows.is_full(_FOR_PULSES):
                self.state.due[queue_id] = None  # after the others
                break
            handled += self._pulse_step(queue_id, step, definition)
        return handled

    def _pulse_step(self, queue_id: int, step: StepOf[Definition], definition: Definition) -> int:
        """Run one step for one queue; returns the number of handled messages.

        A step that fails has changed nothing and is tried again.
        """
        handled = 0
        try:
            events = self._events_of(queue_id, step, definition)
        except Exception as error:
            if isinstance(error, DamagedRecord | MessagesMissing):
                self._ask_for_rebuild(queue_id, error)
            else:
                self.notices.append(Notice("pulse_failed", {"queue_id": queue_id}, error))
            queue = self.state.queue(queue_id)
            self.state.plan_pulse(queue, self._stamp.now_ms + _PULSE_AGAIN_MS)
            return 0
        for event in events:
            self.do(event)
            handled += event.weight
        return handled

    def _events_of(
        self, queue_id: int, step: StepOf[Definition], definition: Definition
    ) -> tuple[Event, ...]:
        state = self.state
        while (queue := state.queues.get(queue_id)) is not None:
            try:
                events, again_ms = step(state, queue, definition, self._stamp)
            except (DamagedRecord, MessagesMissing) as error:
                self._quarantine(error)
                if state.rows.is_full(_FOR_PULSES):
                    break  # the rest follows in the next Turn
                continue
            if again_ms is not None:
                state.plan_pulse(queue, again_ms)
            return events
        return ()

    # -- damage ------------------------------------------------------------------------------------

    def _quarantine(self, error: DamagedRecord | MessagesMissing) -> None:
        """Quarantine the damage, so that a decision can be repeated. Raises the error if that does
        not help, or is not for this shard to do."""
        state = self.state
        events = quarantine(state, error, self._stamp.now_ms)
        for event in events:
            self.do(event)
        self.notices.append(damage_notice(state, events[0].queue_id, error))

    def _ask_for_rebuild(self, queue_id: int, error: DamagedRecord | MessagesMissing) -> None:
        """Have a queue rebuilt whose damage no event can avoid. Raises the error if another host
        heals it."""
        if is_for_others(self.state, error):
            raise error
        if isinstance(error, DamagedRecord):
            queue_id = self.state.rows.queue_of(error)
        self.damage = Damage(queue_id, str(error))
