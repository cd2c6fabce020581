"""Pulses: what time does to the queues in a Turn, by events that it applies and records.

What happens to one queue at its time is in `pulse.py`. Damage that a rule meets is quarantined, or
the queue is rebuilt.
"""

from __future__ import annotations

from collections.abc import Sequence

from visibility.rows.row_codec import DamagedRecord
from visibility.rules.events import Effects, Event, Notice
from visibility.rules.pulse import STEPS, STEPS_OF_DELETED, Definition, StepOf
from visibility.rules.quarantine import ask_for_rebuild, quarantine
from visibility.state.rows import MessagesMissing
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


def run_due(turn: Effects, stamp: Stamp) -> None:
    """Run the pulses of due queues, up to a bound."""
    state = turn.state
    due, is_full = state.due, state.rows.is_full
    handled = 0
    for queue_id in list(due)[:PULSES_MAX]:
        if handled >= PULSE_MESSAGES_MAX or is_full(_FOR_PULSES):
            break
        del due[queue_id]
        definition = state.definitions.queue_of_id(queue_id)
        if definition is not None:
            handled += _run(turn, stamp, queue_id, STEPS, definition)
            continue
        queue = state.queues.get(queue_id)
        if queue is not None and queue_id > state.definitions.highest_queue_id:
            state.plan_pulse(queue, stamp.now_ms + _UNKNOWN_AGAIN_MS)
        handled += _run(turn, stamp, queue_id, STEPS_OF_DELETED, None)


def _run(
    turn: Effects,
    stamp: Stamp,
    queue_id: int,
    steps: Sequence[StepOf[Definition]],
    definition: Definition,
) -> int:
    """Run the steps of one queue; returns the number of handled messages.

    A step that fails has changed nothing and is tried again.
    """
    state = turn.state
    handled = 0
    for step in steps:
        if state.rows.is_full(_FOR_PULSES):
            state.due[queue_id] = None  # after the others
            break
        try:
            events = _events_of(turn, stamp, queue_id, step, definition)
        except Exception as error:
            if isinstance(error, DamagedRecord | MessagesMissing):
                ask_for_rebuild(turn, queue_id, error)
            else:
                turn.notices.append(Notice("pulse_failed", {"queue_id": queue_id}, error))
            state.plan_pulse(state.queue(queue_id), stamp.now_ms + _PULSE_AGAIN_MS)
            continue
        for event in events:
            turn.do(event)
            handled += event.weight
    return handled


def _events_of(
    turn: Effects, stamp: Stamp, queue_id: int, step: StepOf[Definition], definition: Definition
) -> tuple[Event, ...]:
    state = turn.state
    while (queue := state.queues.get(queue_id)) is not None:
        try:
            events, again_ms = step(state, queue, definition, stamp)
        except (DamagedRecord, MessagesMissing) as error:
            quarantine(turn, error, stamp.now_ms)
            if state.rows.is_full(_FOR_PULSES):
                break  # the rest follows in the next Turn
            continue
        if again_ms is not None:
            state.plan_pulse(queue, again_ms)
        return events
    return ()
