"""The judge: compares the history of a run with the service's obligations.

Every rule reports only findings that no order of the operations can explain: an operation with an
unknown outcome may or may not have happened, and overlapping operations may have happened in either
order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from compat_tests.faults import judged_limits as limits
from compat_tests.faults.fault_history import Delivery, History, Outcome, Send
from compat_tests.faults.judged_history import MARGIN_S, RECEIVE_MAX, Evidence, Finding
from compat_tests.faults.repeats import told_apart

DEDUPLICATION_S = 300.0


class Violation(NamedTuple):
    """One broken promise."""

    rule: str
    name: str
    """The message, or the queue."""

    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.name} {self.text}"


class Verdict(NamedTuple):
    """Findings of the judge."""

    violations: list[Violation]
    missing: list[str]
    """Names of lost messages: violations too, unless damage explains them."""

    def broken(self) -> list[str]:
        """Every finding, one a line, for a run in which nothing may be missing."""
        return [f"lost: {name}" for name in self.missing] + [str(each) for each in self.violations]


def judge(history: History, *, excuses_faults: bool = False) -> Verdict:
    """Apply every rule."""
    evidence = Evidence(told_apart(history))
    violations = [
        Violation(rule.__name__.strip("_").replace("_", " "), name, text)
        for rule in RULES
        for name, text in rule(evidence)
        if not (rule in OF_KNOWLEDGE and evidence.may_be_forgotten(name))
    ]
    answers = history.refusals if excuses_faults else [*history.refusals, *history.faults]
    violations += [Violation("unexpected error", "", text) for text in answers]
    return Verdict(violations, sorted(evidence.missing - evidence.given_up))


def _wrong_message(evidence: Evidence) -> Iterator[Finding]:
    """Deliveries that differ from the sent message, or from a queue that it cannot be in."""
    for name, deliveries in evidence.deliveries.items():
        sends = evidence.sends.get(name)
        for delivery in deliveries:
            if sends is None:
                yield name, f"in {delivery.queue} was never sent"
                continue
            home = sends[0].queue
            if delivery.content != sends[0].content:
                yield name, f"in {delivery.queue} is not as it was sent"
            if delivery.queue not in {home, *evidence.history.queues[home].reach}:
                yield name, f"of {home} was received from {delivery.queue}"


def _returned(evidence: Evidence) -> Iterator[Finding]:
    """Deleted messages that were delivered again, under the id that was deleted if there may be
    several."""
    for name, deleted in evidence.deleted.items():
        sends, deletes = evidence.sends[name], evidence.deletes[name]
        for delivery in evidence.deliveries[name]:
            gone = {each.delivery.message_id for each in deletes if each.begun < delivery.begun}
            is_another = len(sends) > 1 and delivery.message_id not in gone
            is_another = is_another and _may_be_several(evidence, sends)
            if delivery.begun > deleted and not is_another:
                after = delivery.begun - deleted
                yield name, f"came back {after:.3f} s after its delete, from {delivery.queue}"


def _came_again(evidence: Evidence) -> Iterator[Finding]:
    """Messages that two receives got from a queue that delivers at most once."""
    for name, deliveries in evidence.deliveries.items():
        queue = deliveries[0].queue
        if not evidence.history.queues[queue].is_at_most_once:
            continue
        ids = [each.message_id for each in deliveries if each.queue == queue]
        if len(set(ids)) < len(ids):
            yield name, f"was received {len(ids)} times from {queue}"


def _wrong_cause(evidence: Evidence) -> Iterator[Finding]:
    """Dead letters that do not tell why they died."""
    for name, deliveries in evidence.deliveries.items():
        home = evidence.sends[name][0].queue if name in evidence.sends else ""
        for delivery in deliveries:
            cause = evidence.history.queues[delivery.queue].cause
            if cause and delivery.queue != home and delivery.cause != cause:
                yield name, f"died in {delivery.queue} of {delivery.cause!r}, not of {cause!r}"


def _wrong_origin(evidence: Evidence) -> Iterator[Finding]:
    """Redriven messages that do not tell the id under which they were sent."""
    for name, deliveries in evidence.deliveries.items():
        sent = {each.message_id for each in evidence.sends.get(name, ())}
        for delivery in deliveries:
            if delivery.first_id and "" not in sent and delivery.first_id not in sent:
                yield name, f"was {delivery.first_id} at first, which nobody sent"


def _went_round(evidence: Evidence) -> Iterator[Finding]:
    """Messages that died more often than they may."""
    for name, deliveries in evidence.deliveries.items():
        sends = evidence.sends.get(name)
        most = evidence.history.queues[sends[0].queue].deaths_max if sends else 0
        deaths = {each.died_ms for each in deliveries if each.died_ms}
        if most and len(deaths) > most:
            yield name, f"died {len(deaths)} times"


def _half_done(evidence: Evidence) -> Iterator[Finding]:
    """Transactions of which some was done and some was not, or which were cancelled and did
    something."""
    for transaction in evidence.history.transactions:
        came = [each for each in transaction.sent if evidence.deliveries.get(each)]
        if not came:
            continue
        if transaction.outcome is Outcome.REFUSED:
            yield came[0], "came from a transaction that was cancelled"
        for name in transaction.sent:
            queue, end = evidence.sends[name][0].queue, float("inf")
            is_removed = evidence.removal(queue, transaction.begun, end) is not None
            is_removed = is_removed or name in evidence.given_up
            if not (name in came or is_removed or evidence.is_deleted_for(name, end)):
                yield name, f"did not come, but {came[0]} of its transaction did"
        done = min(each.ended for name in came for each in evidence.deliveries[name])
        for consumed in transaction.consumed:
            for delivery in evidence.deliveries[consumed.name]:
                if delivery.begun > done:
                    yield consumed.name, f"came back after {came[0]} was made of it"


def _consumed_twice(evidence: Evidence) -> Iterator[Finding]:
    """Messages that two transactions consumed, or one after they were deleted."""
    consumers = Counter[tuple[str, str]]()
    for transaction in evidence.history.transactions:
        if transaction.outcome is not Outcome.DONE:
            continue
        for consumed in transaction.consumed:
            consumers[consumed.name, consumed.message_id] += 1
            if consumers[consumed.name, consumed.message_id] == 2:
                yield consumed.name, "was consumed by two transactions"
            deleted = evidence.deleted.get(consumed.name, transaction.begun)
            if deleted < transaction.begun and consumed.message_id in {
                each.delivery.message_id
                for each in evidence.deletes[consumed.name]
                if each.ended == deleted
            }:
                yield consumed.name, "was consumed by a transaction after its delete"


def _half_consumed(evidence: Evidence) -> Iterator[Finding]:
    """Transactions of unknown outcome that consumed some messages and gave others back."""
    drain = evidence.history.drain_begun
    for transaction in evidence.history.transactions:
        names = [each.name for each in transaction.consumed]
        back = [
            each.name
            for each in transaction.consumed
            for delivery in evidence.deliveries[each.name]
            if delivery.begun >= drain and delivery.message_id == each.message_id
        ]
        for name in names if back and transaction.outcome is Outcome.UNKNOWN else ():
            came = any(each.begun >= drain for each in evidence.deliveries[name])
            send = evidence.sends[name][0]
            is_removed = evidence.removal(send.queue, send.begun, drain) is not None
            is_removed = is_removed or evidence.is_too_old(send, drain)
            is_removed = is_removed or evidence.is_deleted_for(name, drain)
            if not came and not is_removed and len(evidence.deletes[name]) == 1:
                yield name, f"was consumed, but {back[0]} of its transaction was not"


def _served_after_removal(evidence: Evidence) -> Iterator[Finding]:
    """Messages delivered after a purge that was not undone."""
    for name, sends in evidence.sends.items():
        if sends[-1].outcome is not Outcome.DONE:
            continue  # it may have been sent after the purge
        sent = max(send.ended for send in sends)
        for delivery in evidence.deliveries.get(name, ()):
            removal = evidence.removal(delivery.queue, sent, delivery.begun)
            if removal is None or removal.outcome is not Outcome.DONE:
                continue
            if sent < removal.begun and removal.ended < delivery.begun:
                if not evidence.is_restored(removal, delivery.ended, surely=False):
                    yield name, f"was served by {delivery.queue} after the purge"


def _hidden_but_served(evidence: Evidence) -> Iterator[Finding]:
    """Deliveries within another delivery's visibility timeout."""
    for name, deliveries in evidence.deliveries.items():
        are_several = _may_be_several(evidence, evidence.sends.get(name, []))
        for first in deliveries:
            for second in deliveries:
                if not _comes_before(first, second):
                    continue
                if are_several and first.message_id != second.message_id:
                    continue
                until = evidence.hidden_until(first, second.ended)
                if first.queue == second.queue:
                    until += evidence.history.queues[first.queue].retry_s
                deletes = evidence.deletes.get(name, ())
                is_deleted = any(each.begun < second.ended for each in deletes)  # see `_returned`
                if second.ended < until - MARGIN_S and not is_deleted:
                    left = until - second.ended
                    yield name, f"was served by {second.queue} while hidden for {left:.3f} s more"


def _comes_before(first: Delivery, second: Delivery) -> bool:
    if first.message_id == second.message_id:
        return first.count < second.count and second.ended > first.begun  # else see `_wrong_count`
    return first.ended < second.begun


def _wrong_count(evidence: Evidence) -> Iterator[Finding]:
    """Deliveries that do not count one more than the one before, allowing for lost answers."""
    unknown = evidence.history.unknown_receives
    for name, deliveries in evidence.deliveries.items():
        for message_id in {delivery.message_id for delivery in deliveries}:
            found = sorted((d for d in deliveries if d.message_id == message_id), key=_count)
            if any(one.count == next_.count for one, next_ in pairwise(found)):
                yield name, f"has the same receive count twice: {[d.count for d in found]}"
            for one, next_ in pairwise(found):
                if next_.ended < one.begun:
                    yield name, f"was received for time {next_.count} before time {one.count}"
            places = {d.queue for d in deliveries} | _circle(evidence, name)
            most = len(found) + sum(unknown[queue] for queue in places)
            most += sum(unknown[send.queue] for send in evidence.sends.get(name, ())[:1])
            if found[-1].count > most:
                yield name, f"counts {found[-1].count} receives, at most {most} were made"


def _circle(evidence: Evidence, name: str) -> frozenset[str]:
    """The queues that a message may have been in without a delivery, as it went on by itself."""
    sends = evidence.sends.get(name)
    queue = evidence.history.queues[sends[0].queue] if sends else None
    return queue.reach if queue is not None and queue.deaths_max else frozenset()


def _count(delivery: Delivery) -> int:
    return delivery.count


def _early(evidence: Evidence) -> Iterator[Finding]:
    """Delayed messages that were served before the end of their delay."""
    for name, sends in evidence.sends.items():
        for delivery in evidence.deliveries.get(name, ()):
            if evidence.history.queues[delivery.queue].cause and delivery.queue != sends[0].queue:
                continue  # a delay ends with its queue
            if delivery.ended < sends[0].begun + sends[0].delay_s - MARGIN_S:
                yield name, f"was served before its delay of {sends[0].delay_s} s was over"


def _served_too_old(evidence: Evidence) -> Iterator[Finding]:
    """Messages that a receive got although their retention was over when it was asked for."""
    history = evidence.history
    for name, deliveries in evidence.deliveries.items():
        sends = evidence.sends.get(name, ())
        if any(send.outcome is Outcome.UNKNOWN for send in sends):
            continue  # it may have been sent later
        for delivery in deliveries:
            sent = max((send.ended for send in sends), default=delivery.begun)
            age_s = delivery.begun - sent
            age_s -= sum(back for at, back in history.set_back if sent <= at <= delivery.begun)
            over_s = age_s - history.queues[delivery.queue].retention_s
            if over_s > 0:
                yield name, f"was served by {delivery.queue} {over_s:.3f} s after its retention"


def _higher_waited(evidence: Evidence) -> Iterator[Finding]:
    """Messages served while others of a higher priority waited that nobody had received so far."""
    history = evidence.history
    strict = {queue.name for queue in history.queues.values() if queue.is_strict}
    waiting = [
        each
        for name, sends in evidence.sends.items()
        for each in sends
        if each.queue in strict and len(sends) == 1 and each.outcome is Outcome.DONE
    ]
    firsts = {name: min(each.begun for each in of) for name, of in evidence.deliveries.items()}
    for name, deliveries in evidence.deliveries.items():
        for delivery in deliveries:
            higher = [
                send.name
                for send in waiting
                if send.queue == delivery.queue
                and send.priority > evidence.sends[name][0].priority
                and send.ended + MARGIN_S < delivery.begun
                and firsts.get(send.name, float("inf")) > delivery.ended
                and evidence.removal(send.queue, send.begun, delivery.ended) is None
            ]
            hidden = RECEIVE_MAX * history.unknown_receives[delivery.queue]
            if len(higher) > hidden and not history.is_resized(delivery.queue, delivery.ended):
                yield name, f"was served by {delivery.queue} before {', '.join(higher)}"


def _behind_a_later_one(evidence: Evidence) -> Iterator[Finding]:
    """Messages received for the first time after others of a later sender's time, from a queue in
    the order of the senders' clocks."""
    first: dict[str, list[tuple[Delivery, int]]] = defaultdict(list)
    for name, deliveries in evidence.deliveries.items():
        sends = evidence.sends.get(name, ())
        if not sends or not sends[0].clock_ms:
            continue
        home = sends[0].queue
        found = [each for each in deliveries if each.queue == home and each.count == 1]
        first[home] += [(each, sends[0].clock_ms) for each in found[:1]]
    for received in first.values():
        latest: tuple[int, Delivery] | None = None  # of those whose answers were complete by then
        waiting = sorted(received, key=lambda each: each[0].ended)
        position = 0
        for delivery, clock_ms in sorted(received, key=lambda each: each[0].begun):
            while position < len(waiting) and waiting[position][0].ended < delivery.begun:
                other, other_ms = waiting[position]
                position += 1
                if latest is None or other_ms > latest[0]:
                    latest = other_ms, other
            in_answer = [each for each in received if each[0].name in delivery.before]
            before = [(ms, each) for each, ms in in_answer] + ([latest] if latest else [])
            for other_ms, other in before:
                if other_ms > clock_ms:
                    yield delivery.name, f"was received after {other.name}, which was sent later"


def _late_in_time(evidence: Evidence) -> Iterator[Finding]:
    """Messages that went to a late queue although they arrived before their wait was over."""
    for name, sends in evidence.sends.items():
        home = evidence.history.queues[sends[0].queue]
        if not home.is_by_clock or not sends[0].is_in_time:
            continue
        for delivery in evidence.deliveries.get(name, ()):
            if delivery.queue != home.name:
                yield name, f"was received from {delivery.queue}, and was not late"


def _out_of_order(evidence: Evidence) -> Iterator[Finding]:
    """FIFO messages served while an earlier one of their group was neither gone nor in the
    answer."""
    groups: dict[tuple[str, str], dict[int, Send]] = defaultdict(dict)
    for sends in evidence.sends.values():
        if evidence.history.queues[sends[0].queue].is_ordered:
            groups[sends[0].queue, sends[0].group].setdefault(sends[0].place, sends[0])
    for group in groups.values():
        gone = 0  # each place up to this one is gone by the end of every later delivery
        deliveries = [d for send in group.values() for d in evidence.deliveries.get(send.name, ())]
        for delivery in sorted(deliveries, key=lambda each: each.ended):
            while gone + 1 in group and _is_gone(evidence, group[gone + 1], delivery.ended):
                gone += 1
            place = evidence.sends[delivery.name][0].place
            for earlier in range(gone + 1, place):
                send = group.get(earlier)
                if send is None or send.name in delivery.before:
                    continue
                if send.name in evidence.missing:
                    continue
                if not _is_gone(evidence, send, delivery.ended):
                    yield delivery.name, f"was served although {send.name} is before it"


def _is_gone(evidence: Evidence, send: Send, at: float) -> bool:
    """True if it may be deleted, purged or too old by then."""
    if any(delete.begun < at for delete in evidence.deletes.get(send.name, ())):
        return True
    if evidence.is_deleted_for(send.name, at) or evidence.is_too_old(send, at):
        return True
    if evidence.may_be_taken(send, at):
        return True
    removal = evidence.removal(send.queue, send.begun, at)
    return removal is not None and not evidence.is_restored(removal, at, surely=True)


def _duplicate(evidence: Evidence) -> Iterator[Finding]:
    """Deduplication ids with several messages, even if one was sent again."""
    for name, sends in evidence.sends.items():
        first = sends[0]
        if _may_be_several(evidence, sends):
            continue
        retried = [s for s in sends if s.message_id and s.ended < first.begun + DEDUPLICATION_S]
        ids = {send.message_id for send in retried}
        if not evidence.history.queues[first.queue].reach:
            ids |= {delivery.message_id for delivery in evidence.deliveries.get(name, ())}
        if len(ids) > 1 and len(retried) == len([send for send in sends if send.message_id]):
            yield name, f"is {len(ids)} messages: {sorted(ids)}"


def _may_be_several(evidence: Evidence, sends: list[Send]) -> bool:
    """True if the queue was perhaps purged between these sends: a purge forgets ids."""
    if not sends:
        return False
    ended = max(send.ended for send in sends)
    return evidence.removal(sends[0].queue, sends[0].begun, ended) is not None


def _two_places(evidence: Evidence) -> Iterator[Finding]:
    """Messages in two places, even while they move; a move task gives a message a new id, for
    good."""
    begun = evidence.history.drain_begun
    for name, deliveries in evidence.deliveries.items():
        if sum(delivery.begun >= begun for delivery in deliveries) > 1:
            places = [delivery.queue for delivery in deliveries if delivery.begun >= begun]
            yield name, f"was there {len(places)} times at the end: {places}"
        order: dict[str, float] = {}
        for delivery in sorted(deliveries, key=lambda each: each.ended):
            order.setdefault(delivery.message_id, delivery.ended)
        ids = list(order)
        for old, new in pairwise(ids):
            late = [d for d in deliveries if d.message_id == old and d.begun > order[new]]
            if late:
                yield name, f"was served by {late[0].queue} after it had moved on"


def _served_while_held(evidence: Evidence) -> Iterator[Finding]:
    """Messages that were served, by whatever queue, although an operator held them."""
    for name, holds in evidence.held.items():
        is_one = not _may_be_several(evidence, evidence.sends[name])
        for held in holds:
            if held.outcome is not Outcome.DONE:
                continue
            for delivery in evidence.deliveries.get(name, ()):
                is_it = is_one or delivery.message_id == held.message_id
                if is_it and held.ended < delivery.begun and delivery.ended < held.released:
                    yield name, f"was served by {delivery.queue} while {held.queue} held it"


def _wrong_counters(evidence: Evidence) -> Iterator[Finding]:
    """Emptied queues that do not count zero."""
    for queue, counts in evidence.history.left.items():
        yield queue, f"is empty and counts {counts}"


Rule = Callable[[Evidence], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    _wrong_message,
    _returned,
    _came_again,
    _wrong_cause,
    _wrong_origin,
    _went_round,
    _half_done,
    _consumed_twice,
    _half_consumed,
    _served_after_removal,
    _hidden_but_served,
    limits.over_the_limit,
    limits.too_fast,
    limits.over_length,
    limits.not_throttled,
    _wrong_count,
    _early,
    _served_too_old,
    _higher_waited,
    _behind_a_later_one,
    _late_in_time,
    _out_of_order,
    _duplicate,
    _two_places,
    _served_while_held,
    _wrong_counters,
)


OF_KNOWLEDGE: tuple[Rule, ...] = (
    _returned,
    _hidden_but_served,
    _wrong_count,
    _duplicate,
    _two_places,
)
"""Those that hold as long as what shards know is not lost."""


def summary(verdict: Verdict) -> str:
    """Number of violations of each rule."""
    found = Counter(each.rule for each in verdict.violations)
    return ", ".join([f"lost {len(verdict.missing)}", *(f"{r} {n}" for r, n in found.items())])
