"""AdoptedRecords: queues as another host showed them, over what the watch of this process reported.

A gateway whose etcd is away for hours is told by the host that refuses a request how the queue is
now (`peers/queue_news.py`). Such a record is shown until the watch reports the queue, or has got as
far as the host had, or goes back to an older state of etcd: then the watch knows better (rule 53).
It is in memory only: a gateway that starts anew is told again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cluster.catalog.catalog_records import Entry, name_of
from cluster.catalog.queue_view import QueueView
from cluster.coordination.coordination import Change
from visibility.contract.model import QueueDefinition

ADOPTED_MAX = 10_000


class _Adopted(NamedTuple):
    revision: int
    """The record is shown until the watch has got here."""
    watched: Entry | None
    """The entry that the watch reported."""


class AdoptedRecords:
    """Those of one process."""

    def __init__(self, view: QueueView) -> None:
        self._view = view
        self._adopted: dict[str, _Adopted] = {}

    def __len__(self) -> int:
        return len(self._adopted)

    def adopt(self, revision: int, entries: Mapping[str, QueueDefinition | None]) -> bool:
        """Show these queues, by the keys of their records, as a host knows them at its revision;
        None for one that does not exist there. False if some is left as it is: this view is
        later."""
        is_shown = True
        for key, entry in entries.items():
            if entry == self._view.entry(key):
                continue
            if self._is_later(key, entry, revision) and not self._is_taken(entry):
                self._show(key, entry, max(revision, self._view.revision + 1))
            else:
                is_shown = False
        return is_shown

    def _is_later(self, key: str, entry: QueueDefinition | None, revision: int) -> bool:
        """After etcd was restored, revisions of hosts may be below those from before: then a
        greater version of the same queue is later."""
        adopted = self._adopted.get(key)
        if revision > (self._view.revision if adopted is None else adopted.revision):
            return True
        shown = self._view.entry(key)
        return (
            isinstance(shown, QueueDefinition)
            and entry is not None
            and entry.is_same_queue(shown)
            and entry.version > shown.version
        )

    def _is_taken(self, entry: QueueDefinition | None) -> bool:
        """True if another queue of this view has an id of this one: etcd was restored, and the id
        was issued again."""
        parts = () if entry is None else entry.all_parts()
        holders = (self._view.queue_of_id(part.queue_id) for part in parts)
        return any(each is not None and name_of(each) != name_of(parts[0]) for each in holders)

    def _show(self, key: str, entry: QueueDefinition | None, until: int) -> None:
        before = self._adopted.pop(key, None)
        watched = self._view.entry(key) if before is None else before.watched
        shown: dict[str, Entry | None] = {key: entry}
        if len(self._adopted) >= ADOPTED_MAX:
            oldest = next(iter(self._adopted))
            shown[oldest] = self._adopted.pop(oldest).watched
        self._adopted[key] = _Adopted(until, watched)
        self._view.show(shown)

    def give_way(self, change: Change, *, is_restored: bool) -> None:
        """The watch is about to show a change: end what it knows better."""
        ended = [
            key
            for key, adopted in self._adopted.items()
            if is_restored or adopted.revision <= change.revision or key in change.records
        ]
        if ended:
            self._view.show({key: self._adopted.pop(key).watched for key in ended})
