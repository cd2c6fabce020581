"""Starts and stops a fleet on this machine as a user does, with `holdfast fleet try`."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.cluster_process import ClusterProcess
from compat_tests.facade import eventually
from compat_tests.node_process import run_command
from compat_tests.pages import ask


class FleetProcess(ClusterProcess):
    """The launcher of a fleet; `url` is the one endpoint."""

    _kind = "fleet"

    def client(self, name: str) -> Boto3Client:
        """A client of one process."""
        return Boto3Client(self.parts.cluster().hosts[name], self.credentials)

    def status(self, name: str) -> dict[str, Any]:
        """`holdfast fleet status --json` of a host."""
        done = run_command("fleet", "status", "--json", "--data", str(self.data / name))
        found: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == bool(found["problems"])
        return found

    def seen_by(self, name: str) -> dict[str, Any]:
        """The page that `fleet status` shows; to wait for a change needs no command a look. A host
        that cannot answer now, such as after a kill, is asked again."""
        found: dict[str, Any] = {}

        def is_answered() -> bool:
            try:
                status, said = ask(self.parts.cluster().hosts[name], self.credentials, "fleet")
            except OSError:
                return False
            found.update(said if status == 200 else {})
            return status == 200

        eventually(is_answered)
        return found

    def leader_of(self, shard: int, host: str = "a") -> str:
        """The host that leads a shard, once there is one; after a kill that takes seconds."""
        leaders: list[str] = []

        def is_led() -> bool:
            clusters = self.seen_by(host)["clusters"]
            shards = [each for cluster in clusters for each in cluster["shards"]]
            leaders.extend(
                each["leader"] for each in shards if each["shard"] == shard and each["leader"]
            )
            return bool(leaders)

        eventually(is_led)
        return leaders[0]

    def parts_of(self, queue: str, host: str = "a") -> list[dict[str, Any]]:
        """The parts of a queue as `fleet parts` shows them, without starting a command. A host may
        hear of a new queue a moment later than the one that made it."""
        url = self.parts.cluster().hosts[host]
        parts: list[dict[str, Any]] = []

        def are_known() -> bool:
            status, found = ask(url, self.credentials, f"api/queues/{queue}/parts")
            assert status in (200, 404), found
            if status == 200:
                parts.extend(found["parts"])
            return bool(status == 200)

        eventually(are_known)
        return parts

    @contextmanager
    def stopped(self, *names: str) -> Iterator[None]:
        """Processes that neither run nor end."""
        for name in names:
            self.parts.signal(name, signal.SIGSTOP)
        try:
            yield
        finally:
            for name in names:
                self.parts.signal(name, signal.SIGCONT)

    def restart(self, name: str) -> None:
        """kill -9; the launcher starts it again."""
        pid = self.parts.signal(name, signal.SIGKILL)
        self.parts.wait_for_another(name, pid)
        self.parts.wait_until_ready(name)
