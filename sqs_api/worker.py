"""Worker: the parts that answer requests: listener and gateway, over shards.

It reads queues from the catalog's view. Changes of queues, users and keys belong to the owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import structlog

from auth.sigv4 import Verifier
from cluster.catalog.catalog import Catalog
from cluster.keys.identity_records import IdentitiesUnreadable
from cluster.keys.identity_store import IdentityStore
from cluster.keys.keyring import Keyring
from sqs_api.admin.every_host import EveryHost
from sqs_api.admin.queue_metrics import QueueMetrics
from sqs_api.admin.queue_samples import QueueSamples
from sqs_api.admin.service_metrics import Parts, ServiceMetrics
from sqs_api.admin.storage_metrics import StorageMetrics
from sqs_api.cloudwatch.monitoring import SERVICE as MONITORING
from sqs_api.cloudwatch.monitoring import Monitoring
from sqs_api.cloudwatch.recorder import Recorder
from sqs_api.gateway.access import Access
from sqs_api.gateway.accounting import Accounting
from sqs_api.gateway.client import authentication
from sqs_api.gateway.deletions import Deletions
from sqs_api.gateway.gateway import Bounds, Gateway
from sqs_api.gateway.handing_over import HAND_OVER_S, HandingOver, TakingOver
from sqs_api.gateway.lent_rates import ASK_S, Doors, LentRates
from sqs_api.gateway.measures import STALL_CHECK_S, Measures
from sqs_api.gateway.metrics import Metrics
from sqs_api.gateway.payload import Payloads
from sqs_api.gateway.queue_actions import QueueActions
from sqs_api.gateway.queue_counts import QueueCounts
from sqs_api.gateway.rates import Rates
from sqs_api.gateway.recheck_refusal import RecheckRefusal
from sqs_api.gateway.request_memory import RequestMemory
from sqs_api.gateway.transact_messages import Transactions
from sqs_api.gateway.used_keys import UsedKeys
from sqs_api.http.fallback import OtherPages
from sqs_api.http.http_limits import Places
from sqs_api.http.server import SERVER_CHECK_S, Server
from sqs_api.parts import Feature, Process
from sqs_api.periodic import Every
from sqs_api.settings.cluster_settings import ProcessRole
from sqs_api.settings.config import AuthMode, Switch, installed_version
from sqs_api.settings.origins import AllowedOrigins
from sqs_api.shards import Shards

_USES_WRITE_S = 60.0
STOP_S = 10.0
"""Time that a stop waits for running requests."""
_DISCONNECT_S = 0.05
"""Time that a stop waits for idle connections to close."""


class OwnerInterface(Protocol):
    """The part of the owner of its machine that a worker needs."""

    @property
    def catalog(self) -> Catalog:
        """The queues."""

    @property
    def keyring(self) -> Keyring:
        """The keys of messages."""

    @property
    def identities(self) -> IdentityStore:
        """Users and access keys."""

    @property
    def deletions(self) -> Deletions:
        """Deletes and purges queues."""

    @property
    def accounting(self) -> Accounting:
        """Counts answered requests."""

    def note(self, event: str, **fields: object) -> None:
        """Tell the audit log of what happened to the service itself."""

    async def catch_up(self) -> None:
        """Wait until all changes of users and keys are known here that were made before. Raises
        IdentitiesUnreadable, KeysAway."""


class Worker:
    """`start` it, then `stop`."""

    def __init__(
        self,
        process: Process,
        owner: OwnerInterface,
        shards: Shards,
        transport: Server,
        hosts: EveryHost,
        *,
        features: Sequence[Feature],
        measures: Measures,
        recorder: Recorder | None,
        doors: Doors | None,
    ) -> None:
        """`features` are those of other parts; a `recorder` stores the history of queues; `doors`
        share their rates."""
        settings, clock, entropy, opened = process
        self._shards = shards
        self._log = structlog.get_logger("worker")
        self.transport = transport
        self.measures = measures
        catalog, router, is_open = owner.catalog, shards.router, settings.auth is AuthMode.OPEN
        self.access = Access(
            catalog, clock, owner.keyring, enforced=not is_open, region=settings.region
        )
        self.verifier = Verifier(owner.identities.credentials())
        self._owner = owner
        self._adopt()
        owner.identities.subscribe(self._adopt)
        owner.identities.subscribe(partial(self._noted, "access_keys_reloaded"))
        owner.keyring.subscribe(partial(self._noted, "keyring_reloaded"))
        used_keys = UsedKeys(self.verifier, owner.identities.note_uses)
        opened.push_async_callback(used_keys.stop)
        counts = QueueCounts()
        self.samples = QueueSamples(catalog, router, counts)
        self.monitoring = Monitoring(
            catalog,
            self.samples,
            hosts,
            authentication(settings, self.verifier, MONITORING),
            self.access,
            clock.wall_s,
            settings.metrics_queues_max,
            recorder,
        )
        opened.push_async_callback(self.monitoring.stop)
        rates = Rates(
            clock.monotonic_s,
            account_rate=settings.account_rate,
            queue_rate=settings.queue_rate,
            fifo_quotas=settings.fifo_quotas is Switch.ON,
        )
        shared = _shared_counts(process, doors, rates, owner.accounting, counts)
        self.features = (
            shards.feature,
            self._measured(process, counts, rates),
            self.monitoring.feature,
            Feature(periodic=(Every(_USES_WRITE_S, used_keys.write),)),
            shared,
            *features,
        )
        self.payloads = Payloads(
            shards.sealer,
            clock.wall_s,
            [see for feature in self.features for see in feature.on_opened],
        )
        self.queue_actions = QueueActions(
            catalog, router, shards.split, owner.deletions, shards.queue_watch
        )
        transactions = Transactions(
            authentication(settings, self.verifier),
            self.access,
            self.payloads,
            router,
            rates,
            clock,
            entropy,
        )
        self.recheck_refusal = RecheckRefusal(self.queue_actions, shards.sealer, owner.catch_up)
        self.gateway = Gateway(
            authenticate=authentication(settings, self.verifier),
            queues=self.queue_actions,
            router=router,
            split=shards.split,
            accounting=owner.accounting,
            clock=clock,
            entropy=entropy,
            public_url=settings.public_url,
            payloads=self.payloads,
            access=self.access,
            bounds=Bounds(
                RequestMemory(settings.request_memory_bytes),
                rates,
                # In a cluster other hosts may have space: there the leader of each shard refuses.
                disk=shards.disk if settings.etcd is None else None,
                waiting_polls_max=settings.waiting_polls_max,
            ),
            counts=counts,
            origins=AllowedOrigins(settings.browser_origins),
            recheck_refusal=self.recheck_refusal,
            services=[
                *(service for feature in self.features for service in feature.services),
                transactions,
            ],
        )
        sources = [source for feature in self.features for source in feature.metrics]
        self.metrics = Metrics(owner.accounting, sources)

    def _adopt(self) -> None:
        """Use the users and access keys as they are now."""
        try:
            credentials = self._owner.identities.credentials()
            self.verifier.replace(credentials)
            self.access.replace(self._owner.identities.users(), credentials)
        except IdentitiesUnreadable as error:
            self._log.error("access_keys_unreadable", error=str(error))

    def _measured(self, process: Process, counts: QueueCounts, rates: Rates) -> Feature:
        """The metrics of queues, parts, files and the listener."""
        settings, wall_s = process.settings, process.clock.wall_s
        shards, catalog, measures = self._shards, self._owner.catalog, self.measures
        queues = QueueMetrics(
            catalog, self.samples, counts.send_to_receive_s, wall_s, settings.metrics_queues_max
        )
        parts = Parts(
            router=shards.router,
            access=self.access,
            disk=shards.disk,
            sealer=shards.sealer,
            measures=measures,
            rates=rates,
            outstanding=lambda: self.gateway.outstanding,
            queues=lambda: len(catalog),
            deletions=self._owner.deletions,
            wall_s=wall_s,
            version=installed_version(),
            durability=settings.durability,
        )
        return Feature(
            metrics=(queues, ServiceMetrics(parts), StorageMetrics(shards.folders), self.transport),
            periodic=(
                Every(STALL_CHECK_S, measures.stalls.look),
                Every(SERVER_CHECK_S, self.transport.look),
            ),
        )

    def _noted(self, event: str) -> None:
        self._log.info(event)
        self._owner.note(event)

    async def listen(self, pages: OtherPages, places: Places | None = None) -> str:
        """Take requests over connections that have these places. Returns the address. Raises
        OSError."""
        return await self.transport.open(self.gateway, pages, places)

    def begin_to_stop(self) -> None:
        """Take no new connections, end long polls early."""
        self.transport.close()
        self._shards.begin_to_stop()

    async def stop(self) -> None:
        """Finish running requests, close connections."""
        try:
            await asyncio.wait_for(self.gateway.drain(), STOP_S)
        except TimeoutError:
            self._log.warning("stopped_with_requests_running", requests=self.gateway.outstanding)
        await self.transport.disconnect(_DISCONNECT_S)


def _shared_counts(
    process: Process,
    doors: Doors | None,
    rates: Rates,
    accounting: Accounting,
    counts: QueueCounts,
) -> Feature:
    """The counts that this process shares with others."""
    settings, clock, entropy, opened = process
    if doors is None:
        return Feature()
    lent = LentRates(rates, doors, clock.monotonic_s)
    opened.push_async_callback(lent.stop)
    periodic = [Every(ASK_S, lent.look)] if rates.is_needed else []
    if accounting.usage is not None and settings.role is ProcessRole.GATEWAY:
        handing_over = HandingOver(doors.counts, accounting, accounting.usage, counts, entropy)
        opened.push_async_callback(handing_over.stop)
        periodic.append(Every(HAND_OVER_S, handing_over.look))
    elif accounting.usage is not None:
        TakingOver(doors.counts, accounting.usage, counts)
    return Feature(periodic=tuple(periodic))
