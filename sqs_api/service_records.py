"""Records: the keys, users and queues of a machine or of a cluster, and the audit log; they exist
before any shard is open."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from cluster.catalog.catalog import Catalog
from cluster.catalog.catalog_records import PREFIX as CATALOG
from cluster.catalog.other_hosts import OtherHosts
from cluster.catalog.queue_rules import Waits
from cluster.coordination.coordination import Coordination
from cluster.keys.identity_records import PREFIX as IDENTITIES
from cluster.keys.identity_store import IdentityStore
from cluster.keys.keyring import Keyring
from cluster.keys.spare_blocks import SpareBlocks
from sqs_api.gateway.audit import FILE_NAME as AUDIT_FILE
from sqs_api.gateway.audit import AuditFile, AuditLines, AuditLog
from sqs_api.parts import Process
from sqs_api.settings.cluster_settings import ProcessRole
from sqs_api.settings.config import Switch, installed_version, workers_of
from sqs_api.settings.declaring import declare_users
from sqs_api.settings.key_stores import open_keyring


class Host(Protocol):
    """The place of the records: a single host, or a member of a cluster."""

    def below(self, kind: str) -> Coordination:
        """The records of one kind, such as `catalog/`."""

    @property
    def others(self) -> OtherHosts:
        """The other hosts that change the records."""


class Records(NamedTuple):
    """Those of one process."""

    keyring: Keyring
    identities: IdentityStore
    audit: AuditLog | None
    catalog: Catalog

    def note(self, event: str, **fields: object) -> None:
        """Tell the audit log of what happened to the service itself."""
        if self.audit is not None:
            self.audit.note(event, **fields)

    async def catch_up(self) -> None:
        """Wait until all changes of users and keys are known here that were made before. Raises
        IdentitiesUnreadable, KeysAway."""
        await self.identities.catch_up()
        await self.keyring.catch_up()

    def note_declared(self, event: str, **fields: object) -> None:
        """Tell the audit log of what the configuration changed."""
        self.note(event, uid=os.getuid(), **fields)


async def open_records(
    process: Process, host: Host, shards: Iterable[int], lines: AuditLines | None = None
) -> Records:
    """Open all, and make the users that the configuration declares. A worker gives the `lines` of
    the audit log, whose file the supervisor has.

    Raises KeysUnusable, KeysAway, IdentitiesUnreadable, AuditUnusable, CatalogUnreadable,
    DeclarationRefused, sqlite3.Error.
    """
    settings, clock, entropy, opened = process
    founds = settings.role is ProcessRole.HOST
    spares = None if founds else SpareBlocks(settings.data)
    keyring = await open_keyring(
        settings, host.below, clock, entropy, owner=settings.account, founds=founds, spares=spares
    )
    opened.push_async_callback(keyring.close)
    secrets = keyring.secrets
    identities = await IdentityStore.open(host.below(IDENTITIES), secrets, clock, entropy)
    opened.push_async_callback(identities.close)
    audit = None
    if settings.audit is Switch.ON:
        lines_of_all = AuditFile(settings.data / AUDIT_FILE) if lines is None else lines
        workers = 1 if lines is None else workers_of(settings)
        audit = AuditLog(lines_of_all, clock.wall_s, settings.host_name, workers=workers)
        opened.callback(audit.close)
        if lines is None:
            audit.note("started", version=installed_version(), uid=os.getuid())
    catalog = await Catalog(
        host.below(CATALOG),
        clock=clock,
        entropy=entropy,
        secrets=secrets,
        shards=shards,
        waits=Waits() if settings.aws_waits is Switch.ON else Waits(0, 0),
        restore_window_ms=settings.restore_deleted_s * 1000,
        others=host.others,
        has_archive=settings.lake is not None or not founds,  # a gateway need not have it
    ).opened()
    opened.push_async_callback(catalog.close)
    records = Records(keyring, identities, audit, catalog)
    await declare_users(settings, identities, records.note_declared)
    return records
