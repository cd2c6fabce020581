"""TrialCluster: three members of etcd, three hosts and a balancer as processes of one machine; or a
fleet of two clusters of three hosts and a gateway."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from errno import EADDRINUSE
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from cluster.clock import Clock, SystemEntropy
from cluster.coordination.coordination import Unavailable
from cluster.coordination.etcd_client import Access
from cluster.coordination.etcd_coordination import EtcdCoordination
from cluster.coordination.etcd_wire import HttpWire
from cluster.fleet.fleet_operations import add_cluster
from cluster.fleet.fleet_records import FLEET, Fleet, NewCluster, read_fleet
from cluster.members.member_records import MembershipRefused
from sqs_api.settings.config import CLUSTER_SHARDS, AuthMode
from sqs_api.trial.child import Child
from sqs_api.trial.layout import (
    BALANCER,
    GATEWAY,
    HOSTS,
    LOOPBACK,
    MEMBERS,
    SECOND,
    Layout,
    Running,
    TrialRefused,
)
from sqs_api.trial.programs import (
    Program,
    balancer,
    balancer_program,
    etcd_member,
    etcd_program,
    host,
)

_START_S = 60.0
_LOOK_S = 0.1
_STOP_S = 30.0
"""Longer than a host takes: it finishes running requests for up to 10 s."""
_ANSWER_S = 2.0
_STOPPING_ANSWER_S = 0.5
_PREFIX = "holdfast/holdfast/"
_SECOND_CLUSTER = 2


class TrialCluster:
    """`start`, then `stop`."""

    def __init__(
        self,
        layout: Layout,
        port: int,
        flags: Mapping[str, str],
        environment: Mapping[str, str],
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        """`port` is the balancer's, 0 for a free one; `flags`, settings by name, and `environment`
        are given to the hosts."""
        self._layout = layout
        self._flags = flags
        self._environment = environment
        self._clock = clock
        self._say = say
        self._children: dict[str, Child] = {}
        self._balancer = balancer_program()
        self.hosts = {name: f"http://{layout.address(name, 'http')}" for name in layout.hosts}
        """Addresses of the hosts for clients."""
        self.endpoint = self.hosts[GATEWAY if layout.kept.is_fleet else HOSTS[0]]
        """The address for clients: the balancer's, without one the gateway's or first host's."""
        if self._balancer is not None:
            own = f"{LOOPBACK}:{port}" if port else layout.address(BALANCER, "http")
            self.endpoint = f"http://{own}"

    @property
    def is_balanced(self) -> bool:
        """True if a balancer stands in front of the hosts."""
        return self._balancer is not None

    @property
    def settings(self) -> Path:
        """A configuration file for commands."""
        return self._layout.settings(HOSTS[0])

    async def start(self) -> None:
        """Start everything, and return once clients are answered. Raises TrialRefused."""
        if self._balancer is not None:
            _refuse_used_port(urlsplit(self.endpoint))
        layout, etcd = self._layout, etcd_program()
        await self._start_all(
            {name: etcd_member(etcd, layout, name) for name in MEMBERS},
            [f"https://{layout.address(name, 'client')}/health" for name in MEMBERS],
        )
        await self._start_hosts(HOSTS)
        if layout.kept.is_fleet:
            await _add_second_cluster(layout, self._clock)
            await self._start_hosts(SECOND)
            await self._start_hosts((GATEWAY,))
        if self._balancer is not None:
            bind, is_open = urlsplit(self.endpoint).netloc, self._flags.get("auth") == AuthMode.OPEN
            program = balancer(self._balancer, layout, bind, is_hidden=is_open)
            await self._start_all({BALANCER: program}, [f"{self.endpoint}/readyz"])

    async def _start_hosts(self, names: Sequence[str]) -> None:
        await self._start_all(
            {name: host(self._layout, name, self._flags, self._environment) for name in names},
            [f"{self.hosts[name]}/readyz" for name in names],
        )

    async def stop(self) -> None:
        """Stop the balancer, then the hosts, then etcd, and say what is waited for."""
        await self._stop_all((BALANCER,))
        await self._stop_all(self._layout.hosts)
        # A leader of etcd looks for a successor for 7 s, if the others stop at the same time.
        leaders = [name for name in MEMBERS if await self._leads_etcd(name)]
        await self._stop_all([name for name in MEMBERS if name not in leaders])
        await self._stop_all(leaders)
        self._layout.note(None)

    async def _stop_all(self, names: Iterable[str]) -> None:
        ending = [self._children[name] for name in names if name in self._children]
        if ending:
            self._say(f"waits for the end of {', '.join(child.name for child in ending)}")
        await asyncio.gather(*(child.stop(_STOP_S) for child in ending))

    async def _leads_etcd(self, name: str) -> bool:
        page = f"https://{self._layout.address(name, 'client')}/metrics"
        answer = await _answer(page, self._layout.etcd_client.context(), _STOPPING_ANSWER_S)
        return b"\netcd_server_is_leader 1\n" in answer

    # -- starting ----------------------------------------------------------------------------------

    async def _start_all(self, programs: Mapping[str, Program], pages: Iterable[str]) -> None:
        """Start these processes, and wait until their pages say that they are ready."""
        tasks = [self._start(name, program) for name, program in programs.items()]
        ready = asyncio.create_task(self._wait_for_all(pages))
        try:
            async with asyncio.timeout(_START_S):
                await asyncio.wait([ready, *tasks], return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            pass
        finally:
            is_ready = ready.done()
            ready.cancel()
        if not is_ready:
            raise TrialRefused(self._not_ready(list(programs)))

    def _start(self, name: str, program: Program) -> asyncio.Task[None]:
        child = Child(
            name, program, self._layout.log(name), self._clock, self._say, self._note_processes
        )
        self._children[name] = child
        return child.start()

    def _not_ready(self, names: list[str]) -> str:
        ends = "".join(
            f"\n{name}: {line}"
            for name in names
            for line in self._children[name].last_lines().splitlines()[-1:]
        )
        return f"{', '.join(names)} did not become ready; their logs end with{ends or ' nothing'}"

    def _note_processes(self) -> None:
        processes = {
            name: child.pid for name, child in self._children.items() if child.pid is not None
        }
        self._layout.note(Running(self.endpoint, self.hosts, processes))

    async def _wait_for_all(self, pages: Iterable[str]) -> None:
        await asyncio.gather(*map(self._wait_for, pages))

    async def _wait_for(self, page: str) -> None:
        tls = self._layout.etcd_client.context() if page.startswith("https:") else None
        # A process of its own has no event for us.
        while b" 200 " not in (await _answer(page, tls, _ANSWER_S)).partition(b"\n")[0]:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)


def _refuse_used_port(endpoint: SplitResult) -> None:
    """A balancer that cannot listen would leave the clients to another service.

    Raises TrialRefused.
    """
    try:
        socket.create_server((endpoint.hostname or LOOPBACK, endpoint.port or 0)).close()
    except OSError as error:
        port = f"port {endpoint.port}"
        if error.errno != EADDRINUSE:
            why = f"{error.strerror}; choose another with --port"
            raise TrialRefused(f"cannot listen on {port}: {why}") from error
        advice = "stop what listens there, or choose another with --port"
        raise TrialRefused(f"{port} is in use: {advice}") from error


async def _answer(page: str, tls: ssl.SSLContext | None, limit_s: float) -> bytes:
    """Head and body of the answer of a page; empty if there is none in time."""
    parts = urlsplit(page)
    request = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(limit_s):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=tls)
            try:
                writer.write(request.encode())
                return await reader.read()
            finally:
                writer.close()
    except OSError:  # a timeout is one
        return b""


async def _add_second_cluster(layout: Layout, clock: Clock) -> None:
    """Write its record before its hosts start, unless it is there; the first one runs.
    Raises TrialRefused."""
    addresses = tuple(f"https://{layout.address(member, 'client')}" for member in MEMBERS)
    root = EtcdCoordination(
        Access(addresses),
        HttpWire(layout.etcd_client.context()),
        prefix=_PREFIX,
        name=".trial",
        clock=clock,
        entropy=SystemEntropy(),
    )
    try:
        found = await root.below(FLEET).read_all()
        if isinstance(found, Unavailable):
            raise TrialRefused(f"etcd cannot be read: {found.reason}")
        fleet = read_fleet({each.key: each.value for each in found.records})
        if _SECOND_CLUSTER not in fleet.clusters:
            asked = NewCluster("", SECOND, CLUSTER_SHARDS)
            await add_cluster(root, Fleet({}, None), asked)
    except MembershipRefused as refusal:
        raise TrialRefused(str(refusal)) from refusal
    finally:
        await root.close()
