"""Repeated sends: messages that a client sent again by itself, so that a standard queue may have
several of them.

The judge knows a message by its name and takes a second one for a broken promise. Here each copy
gets a name of its own, by its MessageId. Moves give messages new ids, so in queues whose messages
move only the loss of such a message is judged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from compat_tests.faults.fault_history import Change, Delete, Delivery, History, Outcome, Send

S = TypeVar("S", Change, Delete)


def told_apart(history: History) -> History:
    """A history without repeated names."""
    if not history.repeated:
        return history
    renamed = {id(each): _renamed(history, each) for each in history.deliveries}
    moved = {name for name in history.repeated if _moves(history, name)}
    told = history.fork()
    told.deliveries = [
        renamed[id(each)] for each in history.deliveries if each.name not in moved
    ] + _last_of_each(history, moved)
    told.changes = [_of(renamed, each) for each in history.changes if _name(each) not in moved]
    told.deletes = [_of(renamed, each) for each in history.deletes if _name(each) not in moved]
    told.deletes += [
        replace(each, outcome=Outcome.UNKNOWN)
        for each in history.deletes
        if _name(each) in moved and each.outcome is not Outcome.REFUSED
    ]
    told.sends = [each for send in history.sends for each in _sends(history, moved, send)]
    return told


def _sends(history: History, moved: set[str], send: Send) -> list[Send]:
    """The send of each copy that was seen."""
    if send.name not in history.repeated or send.name in moved:
        return [send]
    seen = {each.message_id for each in history.deliveries if each.name == send.name}
    made = [replace(send, name=_copy(send.name, send.message_id))] if send.message_id else []
    for message_id in seen - {send.message_id}:
        name = _copy(send.name, message_id)
        made.append(replace(send, name=name, message_id="", outcome=Outcome.UNKNOWN))
    return made or [send]


def _renamed(history: History, delivery: Delivery) -> Delivery:
    if delivery.name not in history.repeated:
        return delivery
    return replace(delivery, name=_copy(delivery.name, delivery.message_id))


def _copy(name: str, message_id: str) -> str:
    return f"{name}#{message_id}"


def _moves(history: History, name: str) -> bool:
    home = next(send.queue for send in history.sends if send.name == name)
    return bool(history.queues[home].reach)


def _name(settled: Change | Delete) -> str:
    return settled.delivery.name


def _of(renamed: dict[int, Delivery], settled: S) -> S:
    return replace(settled, delivery=renamed[id(settled.delivery)])


def _last_of_each(history: History, moved: set[str]) -> list[Delivery]:
    """The last delivery of each of these messages, as its first."""
    last: dict[str, Delivery] = {}
    for delivery in sorted(history.deliveries, key=lambda each: each.begun):
        if delivery.name in moved:
            last[delivery.name] = delivery
    return [replace(each, count=1, before=()) for each in last.values()]
