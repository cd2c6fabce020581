"""The archive job on a lake, with what it said."""

from __future__ import annotations

from spark_jobs.archive.archive import Summary, run_archive
from spark_jobs.archive.service_client import Service
from spark_jobs.lib.spark import OpenSession
from spark_jobs.tests.services import FakeService
from storage.lake import Lake


class ArchiveJob:
    """The job on a lake, and what it said."""

    def __init__(self, lake: Lake, service: FakeService, open_session: OpenSession) -> None:
        self.lake = lake
        self.service = service
        self.open_session = open_session
        self.warnings: list[str] = []
        self.told: list[str] = []

    def run(self, *, seal: bool = True) -> Summary:
        self.warnings, self.told = [], []
        return run_archive(
            self.lake,
            Service(self.service.place),
            self.open_session,
            seal=seal,
            warn=self.warnings.append,
            tell=self.told.append,
        )
