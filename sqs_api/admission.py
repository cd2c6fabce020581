"""AdminSide: administration of a node: its pages, and the note for local commands."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from auth.sigv4 import Verifier
from cluster.clock import Clock, Entropy
from cluster.coordination.coordination import Coordination
from sqs_api.admin.admin_access import AdminAccess
from sqs_api.admin.admin_pages import AdminPages
from sqs_api.admin.every_host import EveryHost
from sqs_api.admin.owner_metrics import QUEUE_METRICS, OwnerMetrics
from sqs_api.admin.queue_samples import QueueSamples
from sqs_api.admin.records_page import PATH as RECORDS
from sqs_api.admin.records_page import RecordsPage
from sqs_api.admin.routes import READ_AUDIT, RESERVED, Parts
from sqs_api.console.console_pages import CONSOLE, ConsolePages
from sqs_api.gateway.access import Access
from sqs_api.gateway.audit import AuditLog
from sqs_api.gateway.metrics import Metrics
from sqs_api.operators.api import AdminApi
from sqs_api.operators.audit_lines import AuditReader
from sqs_api.operators.desk import Desk
from sqs_api.operators.openapi import DOCUMENT, DocumentPage
from sqs_api.settings.config import Audience, AuthMode, Settings
from sqs_api.settings.origins import KnownHosts
from sqs_api.settings.service_note import local_url, make_local_key, remove_note, write_note


class AdminSide:
    """Belongs to the event loop's thread. Each instance makes a new key for local commands."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        entropy: Entropy,
        *,
        access: Access,
        verifier: Verifier,
        audit: AuditLog | None,
    ) -> None:
        self._settings = settings
        self._audit = audit
        self._policies = access
        self._local_key = make_local_key(settings.account, entropy)
        self._access = AdminAccess(
            KnownHosts(settings.host, settings.public_url),
            local_key=self._local_key,
            verifier=None if settings.auth is AuthMode.OPEN else verifier,
            account=settings.account,
            region=settings.region,
            wall_s=clock.wall_s,
        )
        self._now_s = clock.monotonic_s

    def pages(
        self,
        metrics: Metrics,
        is_ready: Callable[[], bool],
        parts: Parts,
        desk: Desk,
        samples: QueueSamples,
        hosts: EveryHost,
        records: Coordination | None,
    ) -> AdminPages:
        """The handler of all requests other than SQS's; `parts` answer routes, `records` are those
        of a single host."""
        reader = AuditReader(self._settings.data, self._settings.host_name)
        hosts.serve(READ_AUDIT, reader.answer)
        api = AdminApi(
            {**parts, Desk: desk},
            self._access,
            self._policies,
            desk.catalog,
            self._audit,
            self._now_s,
        )
        signs_in = self._settings.auth is not AuthMode.OPEN
        console = ConsolePages(self._access, signs_in=signs_in, region=self._settings.region)
        own = {} if records is None else {RECORDS: RecordsPage(records, self._access)}
        return AdminPages(
            metrics,
            is_ready,
            answers_anyone=self._settings.metrics is Audience.ANYONE,
            access=self._access,
            below={
                **own,
                DOCUMENT: DocumentPage(self._access),
                CONSOLE: console,
                QUEUE_METRICS: self._owner_metrics(desk, samples, hosts),
                RESERVED: api,  # last, as the others are below it
            },
        )

    def _owner_metrics(self, desk: Desk, samples: QueueSamples, hosts: EveryHost) -> OwnerMetrics:
        return OwnerMetrics(
            queues=desk.catalog,
            samples=samples,
            hosts=hosts,
            admin=self._access,
            access=self._policies,
            audit=self._audit,
            wall_s=desk.wall_s,
            queues_max=self._settings.metrics_queues_max,
        )

    def leave_note(self, address: str, admin_address: str) -> None:
        """Write the note.

        A failure is only logged, since commands can take the address from an option.
        """
        try:
            write_note(self._settings.data, local_url(address), admin_address, self._local_key)
        except OSError as error:
            reason = error.strerror or str(error)
            structlog.get_logger("node").warning("service_not_noted", reason=reason)

    def remove_note(self) -> None:
        """Remove the note."""
        remove_note(self._settings.data)
