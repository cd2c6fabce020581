"""The metrics of a process: of its queues, its parts, its files and its listener."""

from __future__ import annotations

from collections.abc import Callable

from cluster.catalog.catalog import Catalog
from sqs_api.admin.queue_metrics import QueueMetrics
from sqs_api.admin.queue_samples import QueueSamples
from sqs_api.admin.service_metrics import Parts, ServiceMetrics
from sqs_api.admin.storage_metrics import StorageMetrics
from sqs_api.gateway.access import Access
from sqs_api.gateway.deletions import Deletions
from sqs_api.gateway.measures import STALL_CHECK_S, Measures
from sqs_api.gateway.queue_counts import QueueCounts
from sqs_api.gateway.rates import Rates
from sqs_api.http.server import SERVER_CHECK_S, Server
from sqs_api.parts import Feature, Process
from sqs_api.periodic import Every
from sqs_api.settings.config import installed_version
from sqs_api.shards import Shards


def host_metrics(
    process: Process,
    shards: Shards,
    transport: Server,
    measures: Measures,
    *,
    deletions: Deletions,
    samples: QueueSamples,
    counts: QueueCounts,
    access: Access,
    rates: Rates,
    outstanding: Callable[[], int],
) -> Feature:
    """`outstanding` is the number of requests that wait for their answer."""
    settings, clock, *_ = process
    catalog: Catalog = shards.catalog
    queues = QueueMetrics(
        catalog, samples, counts.send_to_receive_s, clock.wall_s, settings.metrics_queues_max
    )
    parts = Parts(
        router=shards.router,
        access=access,
        disk=shards.disk,
        sealer=shards.sealer,
        measures=measures,
        rates=rates,
        outstanding=outstanding,
        queues=lambda: len(catalog),
        deletions=deletions,
        wall_s=clock.wall_s,
        version=installed_version(),
        durability=settings.durability,
    )
    return Feature(
        metrics=(queues, ServiceMetrics(parts), StorageMetrics(shards.folders), transport),
        periodic=(
            Every(STALL_CHECK_S, measures.stalls.look),
            Every(SERVER_CHECK_S, transport.look),
        ),
    )
