"""The records that commands read and change: those of the cluster; of a single host those of its
running service, or of its folder while no service runs."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from typing_extensions import override

from cluster.catalog.host_records import HostRecords, read_host_records
from cluster.clock import SystemClock, SystemEntropy
from cluster.coordination import coordination
from cluster.coordination.part import Fixed, Part
from sqs_api.commands.page_client import AdminClient, AdminRefused, NoAnswer, ServiceAway
from sqs_api.settings.cluster_records import COMMANDS, open_coordination, read_once
from sqs_api.settings.config import Settings
from sqs_api.settings.key_stores import Below
from sqs_api.settings.service_place import PlaceUnknown, find_place
from storage.files.folder import FolderRefused

_PAGE = "records"
_WAIT_S = 10.0
"""Time that a command waits for a service that starts or stops, or for another command."""
_AGAIN_S = 0.1
_SOUND: dict[str, type[coordination.Done | coordination.Conflict]] = {
    "Done": coordination.Done,
    "Conflict": coordination.Conflict,
}


@asynccontextmanager
async def opened_records(settings: Settings) -> AsyncIterator[Below]:
    """The records of each kind, by the beginning of their keys. Raises FolderRefused,
    MembershipRefused, sqlite3.Error."""
    if settings.etcd is not None:
        clock, entropy = SystemClock(), SystemEntropy()
        cluster = open_coordination(settings, "", clock, entropy, COMMANDS)
        try:
            yield cluster.below
        finally:
            await cluster.close()
        return
    records = await _folder_or_service(settings)
    try:
        yield records.below
    finally:
        await records.close()


async def _folder_or_service(settings: Settings) -> HostRecords | ServiceRecords:
    now_s = asyncio.get_running_loop().time
    end_s = now_s() + _WAIT_S
    while True:
        try:
            return await HostRecords.open(settings.data)
        except FolderRefused as refusal:
            try:
                client = AdminClient(find_place(None, settings.data, {}, lambda: None))
                return await ServiceRecords.open(client)
            except (ServiceAway, PlaceUnknown):  # it starts or stops, or is another command
                if now_s() >= end_s:
                    raise refusal from None
            except AdminRefused as error:
                raise FolderRefused(f"{refusal}, and does not answer: {error}") from error
        await asyncio.sleep(_AGAIN_S)


def copied_records(settings: Settings) -> Fixed:
    """A copy of the records of a data folder or of the cluster, whoever has them open. Raises
    FolderRefused, MembershipRefused."""
    if settings.etcd is not None:
        found = read_once(settings, "", SystemClock(), SystemEntropy())
        if isinstance(found, coordination.Unavailable):
            raise FolderRefused(f"cannot read the cluster's records: {found.reason}")
        return Fixed(found)
    try:
        return Fixed(read_host_records(settings.data))
    except (sqlite3.Error, OSError) as error:
        raise FolderRefused(f"cannot read the records of {settings.data}: {error}") from error


class ServiceRecords(coordination.Coordination):
    """The records of users and keys of a running service. The watch reports after each commit."""

    def __init__(self, client: AdminClient) -> None:
        """Call `open` instead."""
        self._client = client
        self._shown = coordination.Snapshot(0, [])
        self._watchers: list[coordination.OnChange] = []

    @classmethod
    async def open(cls, client: AdminClient) -> ServiceRecords:
        """Raises AdminRefused."""
        records = cls(client)
        await records._read()
        return records

    def below(self, folder: str) -> coordination.Coordination:
        """The records whose keys begin with this."""
        return Part(self, folder)

    async def _ask(self, method: str, content: object = None) -> Any:
        return await asyncio.to_thread(self._client.ask, method, _PAGE, content)

    async def _read(self) -> coordination.Snapshot:
        """Raises AdminRefused."""
        found = msgspec.convert(await self._ask("GET"), coordination.Snapshot)
        before = {record.key: record for record in self._shown.records}
        now = {record.key: record for record in found.records}
        self._shown = found
        changed = {each for each in before.keys() | now.keys() if before.get(each) != now.get(each)}
        change = coordination.Change(
            found.revision,
            {key: now[key].value if key in now else None for key in changed},
            {key: now[key].revision for key in changed & now.keys()},
        )
        for on_change in self._watchers:
            on_change(change)
        return found

    @override
    async def read_all(self) -> coordination.Snapshot | coordination.Unavailable:
        try:
            return await self._read()
        except AdminRefused as error:
            return coordination.Unavailable(str(error))

    @override
    async def read(self, keys: Collection[str]) -> coordination.Snapshot | coordination.Unavailable:
        found = await self.read_all()
        return found if isinstance(found, coordination.Unavailable) else found.of(keys)

    @override
    async def commit(self, transaction: coordination.Transaction) -> coordination.Outcome:
        try:
            sent = msgspec.to_builtins(transaction[:2])
            name, said = await self._ask("POST", sent)
            await self._read()
        except ServiceAway as error:
            return coordination.Unavailable(str(error))
        except NoAnswer as error:
            return coordination.Unknown(str(error))
        except AdminRefused as error:
            return coordination.Unavailable(str(error))
        if name in _SOUND:
            return _SOUND[name](said)
        return (coordination.Unknown if name == "Unknown" else coordination.Unavailable)(said)

    @override
    async def watch(self, after: coordination.Snapshot, on_change: coordination.OnChange) -> None:
        self._watchers.append(on_change)

    @override
    def expect(self, revision: int) -> None:
        """There is nothing to do."""

    @override
    async def close(self) -> None:
        self._watchers.clear()
