"""Catalogs over any records."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.catalog.catalog import Catalog
from cluster.catalog.other_hosts import NO_OTHERS, OtherHosts
from cluster.catalog.queue_rules import Waits
from cluster.clock import Clock, Entropy
from cluster.coordination.coordination import Coordination
from cluster.keys.keyring import Secrets
from cluster.tests.virtual_time import CountingEntropy, SettableClock, some_secrets

_AS_ON_AWS = Waits()


async def opened_catalog(
    records: Coordination,
    *,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
    secrets: Secrets | None = None,
    shards: Iterable[int] = (0,),
    waits: Waits = _AS_ON_AWS,
    restore_window_ms: int = 0,
    others: OtherHosts = NO_OTHERS,
) -> Catalog:
    """A catalog that has an archive; nothing that was deleted is kept without a window."""
    return await Catalog(
        records,
        clock=clock or SettableClock(),
        entropy=entropy or CountingEntropy(),
        secrets=secrets or some_secrets(),
        shards=shards,
        waits=waits,
        restore_window_ms=restore_window_ms,
        others=others,
        has_archive=True,
    ).opened()
