"""AdminSide: administration of a node: its pages, and the note for local commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from auth.credentials import AccessKey
from cluster.coordination.coordination import Coordination
from sqs_api.admin.admin_access import AdminAccess
from sqs_api.admin.admin_pages import AdminPages, Below, MetricsPage
from sqs_api.admin.browser_sessions import BrowserSessions, Seals
from sqs_api.admin.every_host import EveryHost
from sqs_api.admin.owner_metrics import QUEUE_METRICS, OwnerMetrics
from sqs_api.admin.records_page import PATH as RECORDS
from sqs_api.admin.records_page import RecordsPage
from sqs_api.admin.routes import READ_AUDIT, RESERVED, Parts
from sqs_api.archiving.lake_questions import ArchivedMessages
from sqs_api.console.console_pages import CONSOLE, ConsolePages
from sqs_api.operators.api import AdminApi
from sqs_api.operators.arrival_counts import Arrivals
from sqs_api.operators.audit_lines import AuditReader
from sqs_api.operators.marks import Marks
from sqs_api.operators.openapi import DOCUMENT, DocumentPage
from sqs_api.operators.operator_context import OperatorContext
from sqs_api.operators.readings import Readings
from sqs_api.operators.scan_turns import ScanTurns
from sqs_api.operators.user_admin import UserAdmin
from sqs_api.owner import Owner
from sqs_api.parts import Process
from sqs_api.settings.config import Audience, AuthMode
from sqs_api.settings.origins import KnownHosts
from sqs_api.settings.service_note import local_url, make_local_key, remove_note, write_note
from sqs_api.shards import Shards
from sqs_api.worker import Worker
from storage.copies.export_task import readable_keys


def _sign_in_pages(
    process: Process, owner: Owner, access: AdminAccess, sessions: BrowserSessions | None
) -> Mapping[str, Below]:
    """The way to an OpenID Connect provider, if there is one; else its library is not loaded."""
    settings, clock, entropy, _ = process
    if settings.oidc_issuer is None or sessions is None:
        return {}
    from sqs_api.operators.oidc_provider import OidcProvider
    from sqs_api.operators.oidc_sign_in import SIGN_IN, OidcSignIn

    provider = OidcProvider(settings, clock.wall_s, clock.monotonic_s)
    return {
        SIGN_IN: OidcSignIn(
            settings,
            provider,
            access,
            sessions,
            owner.identities,
            audit=owner.audit,
            entropy=entropy,
            wall_s=clock.wall_s,
        )
    }


class AdminSide:
    """Each instance makes a new key for local commands."""

    def __init__(
        self,
        process: Process,
        owner: Owner,
        shards: Shards,
        worker: Worker,
        hosts: EveryHost,
        *,
        parts: Parts,
        records: Coordination | None,
        is_ready: Callable[[], bool],
        metrics: MetricsPage,
        local_key: AccessKey | None,
    ) -> None:
        """`parts` answer routes, `records` are those of a single host. The local key is given to a
        worker, whose supervisor leaves the note."""
        settings, clock, entropy, _ = process
        self._data = settings.data
        self._local_key = local_key or make_local_key(settings.account, entropy)
        signs_in = settings.auth is not AuthMode.OPEN
        known = KnownHosts(settings.host, settings.public_url)
        sessions = None
        if signs_in:
            seals = Seals(lambda: owner.keyring.secrets)
            sessions = BrowserSessions(
                known, owner.identities.sessions, seals, entropy, clock.wall_s
            )
        access = AdminAccess(
            known,
            local_key=self._local_key,
            verifier=worker.verifier if signs_in else None,
            account=settings.account,
            region=settings.region,
            wall_s=clock.wall_s,
            session_of=None if sessions is None else sessions.session,
        )
        context = OperatorContext(
            catalog=owner.catalog,
            router=shards.router,
            deletions=owner.deletions,
            payloads=worker.payloads,
            sealer=shards.sealer,
            readings=Readings(shards.router, owner.catalog, clock.monotonic_s),
            wall_s=clock.wall_s,
            monotonic_s=clock.monotonic_s,
            bits128=entropy.bits128,
            hosts=hosts,
            account=settings.account,
            actions=worker.queue_actions,
            history=worker.monitoring.reader,
            charts=worker.monitoring.charts,
            arrivals=Arrivals(worker.monitoring.reader, clock.wall_s, clock.monotonic_s),
            archive=ArchivedMessages(settings.lake, readable_keys(False, settings.archive_keys)),
            user_admin=UserAdmin(owner.identities, worker.verifier.used),
            find_key=owner.keyring.find,
            named_keys=owner.keyring.names,
            marks=parts[Marks],
            scans=ScanTurns(),
            sessions=sessions,
            grafana_url=settings.grafana_url,
        )
        reader = AuditReader(settings.data, settings.host_name)
        hosts.serve(READ_AUDIT, reader.answer, of_folder=True)
        queue_metrics = OwnerMetrics(
            queues=owner.catalog,
            samples=worker.samples,
            hosts=hosts,
            admin=access,
            access=worker.access,
            audit=owner.audit,
            wall_s=clock.wall_s,
            queues_max=settings.metrics_queues_max,
        )
        api = AdminApi(
            {**parts, OperatorContext: context},
            access,
            worker.access,
            owner.catalog,
            owner.audit,
            clock.monotonic_s,
            worker.recheck_refusal,
        )
        process.opened.callback(api.close)
        self.pages = AdminPages(
            metrics,
            is_ready,
            answers_anyone=settings.metrics is Audience.ANYONE,
            access=access,
            below={
                **({} if records is None else {RECORDS: RecordsPage(records, access)}),
                DOCUMENT: DocumentPage(access),
                CONSOLE: ConsolePages(
                    access,
                    signs_in=signs_in,
                    region=settings.region,
                    issuer=settings.oidc_issuer,
                ),
                **_sign_in_pages(process, owner, access, sessions),
                QUEUE_METRICS: queue_metrics,
                RESERVED: api,  # last, as the others are below it
            },
        )
        """The handler of all requests other than SQS's."""

    def leave_note(self, address: str, admin_address: str) -> None:
        """Write the note.

        A failure is only logged, since commands can take the address from an option.
        """
        try:
            write_note(self._data, local_url(address), admin_address, self._local_key)
        except OSError as error:
            reason = error.strerror or str(error)
            structlog.get_logger("node").warning("service_not_noted", reason=reason)

    def remove_note(self) -> None:
        """Remove the note."""
        remove_note(self._data)
