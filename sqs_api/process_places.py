"""The place of a process beside a data folder: it is the only one, or one of several workers.

The only one prepares the folder, makes the first access key, and says in the note and in the audit
log that it serves. The supervisor of workers does that for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from typing_extensions import override

from auth.credentials import AccessKey
from cluster.copies.backup import remove_leftovers
from cluster.peers.peer_settings import host_of, process_name
from sqs_api.admin.admin_pages import MetricsPage
from sqs_api.admin.every_host import EveryHost
from sqs_api.admission import AdminSide
from sqs_api.gateway.audit import AuditLines
from sqs_api.gateway.metrics import Metrics
from sqs_api.gateway_host import prepare_folder
from sqs_api.http.server import Inherited
from sqs_api.owner import Owner
from sqs_api.settings.cluster_settings import ProcessRole
from sqs_api.settings.config import Settings
from sqs_api.settings.reserve import check_folders
from sqs_api.workers.all_metrics import AllMetrics
from sqs_api.workers.worker_host import WorkerPlace
from storage.engines.in_use import refuse_if_in_use
from storage.files.folder import open_folder, renew_format


class MemberPlace(NamedTuple):
    """The place of one of several workers of a host of a cluster."""

    number: int
    workers: int
    """Their number."""
    listening: Inherited


class ProcessPlace:
    """Does what every place has in common: nothing of what is done once for a data folder."""

    is_one_machine = False
    """True if the other hosts that it asks are workers beside it."""

    def __init__(
        self,
        listening: Inherited | None = None,
        lines: AuditLines | None = None,
        local_key: AccessKey | None = None,
    ) -> None:
        """The sockets that it inherits, the audit log's lines, and the key of local commands; None:
        it opens or makes them."""
        self.listening = listening
        self.lines = lines
        self.local_key = local_key

    def folders(self, numbers: range) -> tuple[Mapping[int, Path], list[int]]:
        """The folders of its shards, which get these numbers in a new data folder, and the numbers
        of all shards. Raises FolderRefused."""
        raise NotImplementedError

    def metrics(self, own: Metrics, hosts: EveryHost) -> MetricsPage:
        """The page of metrics."""
        return own

    async def first_key(self, owner: Owner) -> AccessKey | None:
        """Make the first access key, if it is to make one."""
        return None

    def served(self, admin: AdminSide, address: str, admin_address: str) -> None:
        """It answers requests at these addresses."""

    def stopping(self, owner: Owner) -> None:
        """It is about to stop."""

    def left(self, admin: AdminSide) -> None:
        """No other host sends it requests."""


class SoleProcess(ProcessPlace):
    """The only process beside its data folder."""

    def __init__(self, settings: Settings, listening: Inherited | None = None) -> None:
        super().__init__(listening)
        self._settings = settings

    @override
    def folders(self, numbers: range) -> tuple[Mapping[int, Path], list[int]]:
        """A gateway has none. What a killed process left is removed."""
        data = self._settings.data
        folders: Mapping[int, Path] = {}
        if self._settings.role is ProcessRole.GATEWAY:
            prepare_folder(data)
        else:
            folders = open_folder(data, numbers)
            check_folders(self._settings, folders)
            refuse_if_in_use(data, folders.values())
            renew_format(data)
        remove_leftovers(data)
        return folders, sorted(folders)

    @override
    async def first_key(self, owner: Owner) -> AccessKey | None:
        return await owner.make_first_key()

    @override
    def served(self, admin: AdminSide, address: str, admin_address: str) -> None:
        admin.leave_note(address, admin_address)

    @override
    def stopping(self, owner: Owner) -> None:
        owner.note("stopping")

    @override
    def left(self, admin: AdminSide) -> None:
        admin.remove_note()


class WorkerProcess(ProcessPlace):
    """One of several workers, whose supervisor opened the folders."""

    is_one_machine = True

    def __init__(self, place: WorkerPlace) -> None:
        super().__init__(place.listening, place.lines, place.local_key)
        self._place = place

    @override
    def folders(self, numbers: range) -> tuple[Mapping[int, Path], list[int]]:
        return self._place.own_folders, sorted(self._place.folders)

    @override
    def metrics(self, own: Metrics, hosts: EveryHost) -> MetricsPage:
        """The page of all workers."""
        return AllMetrics(own, hosts, self._place.number)


class MemberProcess(SoleProcess):
    """One of several workers of a host of a cluster, with a data folder of its own."""

    def __init__(self, settings: Settings, place: MemberPlace) -> None:
        super().__init__(settings, place.listening)
        self._place = place

    @override
    def metrics(self, own: Metrics, hosts: EveryHost) -> MetricsPage:
        """The page of all workers of this machine."""
        workers = range(self._place.workers)
        assert self._settings.host_name is not None
        host = host_of(self._settings.host_name)
        names = [process_name(host, number) for number in workers]
        return AllMetrics(own, hosts, self._place.number, names)


def place_of(settings: Settings, place: WorkerPlace | MemberPlace | None) -> ProcessPlace:
    """The duties of the process beside its data folder; without a place it is the only one."""
    if place is None:
        return SoleProcess(settings)
    if isinstance(place, MemberPlace):
        return MemberProcess(settings, place)
    return WorkerProcess(place)
