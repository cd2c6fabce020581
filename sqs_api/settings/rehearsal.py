"""Makes the declared queues beside a copy of the catalog's records, to find what a start of a
single host would refuse. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.catalog import queue_rules
from cluster.catalog.queue_rules import Decision, NewQueue, Waits
from cluster.catalog.queue_view import QueueView
from cluster.catalog.record_codec import StoredQueue, definition_of, stored_entry
from cluster.coordination.coordination import Record
from sqs_api.settings.config import ConfigRefused, Settings
from sqs_api.settings.declarations import DeclaredQueue, in_order
from sqs_api.settings.declaring import differing
from visibility.contract.errors import QueueError


def check_declared_queues(settings: Settings, records: Iterable[Record], now_ms: int) -> None:
    """Raises ConfigRefused, with the number of the queue, and CatalogUnreadable."""
    view = QueueView(0)
    stored = ((record, stored_entry(record.key, record.value)) for record in records)
    view.load(
        0,
        {
            record.key: (record.revision, definition_of(entry, b""))
            for record, entry in stored
            if isinstance(entry, StoredQueue)
        },
    )
    for declared in in_order(settings.queues):
        try:
            decision = _decide(view, declared, settings, now_ms)
        except (QueueError, ValueError) as error:
            number = settings.queues.index(declared)
            raise ConfigRefused(f"queues.{number}: queue {declared.name}: {error}") from error
        view.apply(0, decision.entries)


def _decide(view: QueueView, declared: DeclaredQueue, settings: Settings, now_ms: int) -> Decision:
    """Raises QueueError, ValueError."""
    account, region = declared.account or settings.account, declared.region or settings.region
    name = (account, region, declared.name)
    texts = declared.texts(account, region)
    queue = view.find(name)
    if queue is None:
        new = NewQueue(name, texts, declared.tags, b"", [0])
        return queue_rules.create(view, new, now_ms, Waits(0, 0))
    changed = differing(queue, texts)
    if not changed:
        return Decision({})
    return queue_rules.set_attributes(view, queue, changed, now_ms)
