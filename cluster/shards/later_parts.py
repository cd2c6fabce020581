"""Later parts: a new leader has those that its shard noted written back, if the records of queues
are older (rule 52)."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from cluster.shards.issued_ids import CatalogAway, SharedCatalog
from visibility.contract.errors import ServiceUnavailable
from visibility.rows.row_values import NotedParts


async def write_back(
    number: int,
    noted: Mapping[bytes, NotedParts],
    catalog: SharedCatalog,
    log: structlog.stdlib.BoundLogger,
) -> int:
    """Write back the parts of queues whose records are older than the notes of a shard; the view is
    the latest. Returns the number of these queues. Raises CatalogAway."""
    if not noted:
        return 0
    try:
        written = await catalog.write_back_parts(noted)
    except ServiceUnavailable as error:
        raise CatalogAway(
            f"shard {number} knows later parts of queues than etcd, and cannot write them back now"
        ) from error
    for queue in written:
        log.error(
            "parts_written_back",
            queue=queue.arn,
            parts=[part.part_number for part in queue.all_parts()],
            means=f"etcd was restored from before a change of this queue's parts, which shard "
            f"{number} knows: etcd has them again",
            action="none; what else was changed since the snapshot is to be done again, see 'An "
            "etcd from an old snapshot' in the runbook",
        )
    return len(written)
