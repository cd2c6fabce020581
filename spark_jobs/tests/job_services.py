"""A stand-in for the service's archive pages, and the archive job with its output."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from spark_jobs.archive.archive_client import ArchiveClient
from spark_jobs.archive.archive_job import Summary, run_archive
from spark_jobs.archive.archive_tasks import SMALL
from spark_jobs.lib.spark import OpenSession
from sqs_api.settings.service_place import Place
from storage.lake.table import Lake


def place_of(url: str) -> Place:
    """A service without signatures."""
    return Place(url, url, lambda: None, "a test")


class FakeService:
    """Listens on loopback while its block lasts."""

    def __init__(self) -> None:
        self.sealed: dict[tuple[str, int], int] = {}
        self.archived: dict[tuple[str, int], int] = {}
        self.told: list[dict[str, Any]] = []
        self.signed_by: list[str | None] = []
        self.fails: set[str] = set()
        """Paths that are answered 503."""
        self.away: set[int] = set()
        """Shards of a cluster that does not answer."""
        self.before: dict[str, list[Callable[[], object]]] = {}
        """By path: what to do before the first answer, before the second, and so on."""
        self.stall = ""
        """A path whose answers wait until this is another one."""
        service = self

        class Answering(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.answer(self, None)

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                service.answer(self, json.loads(self.rfile.read(length)))

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        self.port: int = self.server.server_address[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.place = place_of(self.endpoint)
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))

    def __enter__(self) -> FakeService:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()

    def answer(self, request: BaseHTTPRequestHandler, body: Any) -> None:
        status, content = self._result(request.path, body)
        self.signed_by.append(request.headers.get("Authorization"))
        while request.path == self.stall:
            time.sleep(0.01)
        encoded = json.dumps(content).encode()
        with suppress(OSError):  # the client may have been killed
            request.send_response(status)
            request.send_header("Content-Length", str(len(encoded)))
            request.end_headers()
            request.wfile.write(encoded)

    def _result(self, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        if steps := self.before.get(path):
            steps.pop(0)()
        if path in self.fails:
            return 503, {"error": "the disk is full"}
        if path == "/_holdfast/archive/seal":
            return 200, self._shards("batch", self.sealed)
        if path == "/_holdfast/archive":
            known = {shard: self.archived.get(shard, 0) for shard in self.sealed}
            return 200, {"lake": "here", **self._shards("archived", known)}
        shard = body["source"], body["shard"]
        if body["shard"] in self.away:
            return 503, {"error": f"no host leads shard {body['shard']} now; try again"}
        if body["batch"] > self.sealed.get(shard, 0):
            return 409, {"error": "there is no such batch"}
        removed = body["batch"] - self.archived.get(shard, 0)
        self.archived[shard] = body["batch"]
        self.told.append(body)
        return 200, {"removed": removed}

    def _shards(self, name: str, batches: dict[tuple[str, int], int]) -> dict[str, Any]:
        found = [
            {"source": source, "shard": number, name: batch}
            for (source, number), batch in batches.items()
            if number not in self.away
        ]
        return {"shards": found, "left_out": sorted(self.away)}


class ArchiveJob:
    """The job on a lake, and its output."""

    def __init__(self, lake: Lake, service: FakeService, open_session: OpenSession) -> None:
        self.lake = lake
        self.service = service
        self.open_session = open_session
        self.small = SMALL
        self.warnings: list[str] = []
        self.told: list[str] = []

    def run(self, *, seal: bool = True) -> Summary:
        self.warnings, self.told = [], []
        return run_archive(
            self.lake,
            ArchiveClient(self.service.place),
            self.open_session,
            seal=seal,
            warn=self.warnings.append,
            tell=self.told.append,
            small=self.small,
        )


def no_session() -> Any:
    raise AssertionError("Spark is not started when there is nothing to do")
