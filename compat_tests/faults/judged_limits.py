"""Rules of the judge about limits of a queue: of messages in it or in flight, and of rates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from compat_tests.faults.fault_history import Delivery, Outcome, Send
from compat_tests.faults.judged_history import MARGIN_S, RECEIVE_MAX, Evidence, Finding


def over_the_limit(evidence: Evidence) -> Iterator[Finding]:
    """More messages in flight at one instant than the queue's limit allows."""
    limits = {queue.name: queue.in_flight_max for queue in evidence.history.queues.values()}
    steps: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for name, deliveries in evidence.deliveries.items():
        for delivery in deliveries:
            if not limits[delivery.queue]:
                continue
            changes = evidence.changes.get(delivery, ())
            ends = [delivery.begun + delivery.hidden_s, *(each.begun for each in changes)]
            ends += [each.begun for each in evidence.deletes.get(name, ())]
            removal = evidence.removal(delivery.queue, delivery.begun, float("inf"))
            ends += [] if removal is None else [removal.begun]
            until = min(ends) - MARGIN_S
            if delivery.ended < until:
                steps[delivery.queue] += [(delivery.ended, 1), (until, -1)]
    for queue, in_flight, at in _exceeded(steps, limits):
        yield queue, f"had {in_flight} messages in flight at {at:.3f}"


def too_fast(evidence: Evidence) -> Iterator[Finding]:
    """More messages received in some time than the queue's rate allows, after a pause or a new
    leader's start at that."""
    starts = evidence.history.starts
    received: dict[str, list[Delivery]] = defaultdict(list)
    for deliveries in evidence.deliveries.values():
        for delivery in deliveries:
            received[delivery.queue].append(delivery)
    for name, deliveries in received.items():
        rate = evidence.history.queues[name].receive_rate
        deliveries.sort(key=lambda each: each.ended)
        for begun in sorted({each.begun for each in deliveries}) if rate else ():
            later = [each for each in deliveries if each.begun >= begun]
            for number, last in enumerate(later, 1):
                after = last.ended - begun + MARGIN_S
                started = sum(begun <= start <= last.ended for start in starts)
                if number > rate * (1 + after) + started:
                    yield last.name, f"was the {number}th from {name} within {after:.3f} s"
                    break


def _exceeded(
    steps: Mapping[str, list[tuple[float, int]]], limits: Mapping[str, int]
) -> Iterator[tuple[str, int, float]]:
    """The queues whose number rises above their limit, with number and time of the first excess;
    `steps` are changes of the number, as (time, change)."""
    for queue, changes in steps.items():
        number = 0
        for at, step in sorted(changes):
            number += step
            if number > limits[queue]:
                yield queue, number, at
                break


def over_length(evidence: Evidence) -> Iterator[Finding]:
    """More messages in a queue at one instant than its limit allows."""
    limits = {queue.name: queue.messages_max for queue in evidence.history.queues.values()}
    steps: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for name, sends in evidence.sends.items():
        for send in sends:
            if limits[send.queue] and send.outcome is Outcome.DONE:
                ends = [each.begun for each in evidence.deletes.get(name, ())]
                removal = evidence.removal(send.queue, send.begun, float("inf"))
                ends += [] if removal is None else [removal.begun]
                if evidence.history.queues[send.queue].reach:
                    ends.append(_last_seen(evidence, send))
                if not ends or min(ends) > send.ended:
                    steps[send.queue] += [(send.ended, 1), *((end, -1) for end in sorted(ends)[:1])]
    for queue, held, at in _exceeded(steps, limits):
        yield queue, f"held {held} messages at {at:.3f}"


def _last_seen(evidence: Evidence, send: Send) -> float:
    """Time until which a message surely was in the queue that it was sent to."""
    deliveries = evidence.deliveries.get(send.name, ())
    return max((each.begun for each in deliveries if each.queue == send.queue), default=send.ended)


def not_throttled(evidence: Evidence) -> Iterator[Finding]:
    """Sends that were accepted while as many messages waited as are too many."""
    history = evidence.history
    for send in history.sends:
        depth = history.queues[send.queue].throttle_depth
        if not depth or send.outcome is not Outcome.DONE:
            continue
        waiting = -RECEIVE_MAX * history.unknown_receives[send.queue] + sum(
            other.queue == send.queue
            and other.outcome is Outcome.DONE
            and other.ended < send.begun
            and not other.delay_s
            and not any(
                each.begun < send.ended
                for each in (
                    *evidence.deliveries.get(other.name, ()),
                    *evidence.deletes.get(other.name, ()),
                )
            )
            and evidence.removal(send.queue, other.begun, send.ended) is None
            for other in history.sends
        )
        if waiting >= depth:
            yield send.name, f"was accepted by {send.queue} while {waiting} messages waited"
