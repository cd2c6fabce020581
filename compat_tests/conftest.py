"""One service for the whole run, every client connected to it, a fresh queue for each test.

`COMPAT_ENDPOINT` (with the usual AWS_ variables) aims the suite at another SQS, such as AWS itself;
the tests that start, stop and configure the service are then left out.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from compat_tests import chromium
from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.clients.client_command_lines import CommandLineClient
from compat_tests.clients.old_boto3 import LIBRARIES, OldBoto3Client
from compat_tests.clients.raw import RawClient
from compat_tests.facade import Client, Credentials, create_fifo_queue
from compat_tests.fleet_process import FleetProcess
from compat_tests.node_process import NodeProcess

NodeFactory = Callable[..., NodeProcess]
MakeFifo = Callable[..., str]

_ENDPOINT = os.environ.get("COMPAT_ENDPOINT")
_numbers = itertools.count(1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of the service's log with each failure."""
    report = yield
    if report.failed:
        fixtures = getattr(item, "funcargs", {}).values()
        for node in {value for value in fixtures if isinstance(value, NodeProcess)}:
            report.sections.append((f"log of {node.url}", node.log_tail()))
    return report


@pytest.fixture(scope="session")
def session_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess | None]:
    """The service of this run, or None when the suite is aimed at another one."""
    if _ENDPOINT:
        yield None
        return
    node = NodeProcess(tmp_path_factory.mktemp("node"), "--aws-waits", "off").start()
    yield node
    node.stop()


@pytest.fixture
def node(session_node: NodeProcess | None) -> NodeProcess:
    """The service of this run, for tests that look at more than its answers."""
    if session_node is None:
        pytest.skip("aimed at a service that this suite did not start")
    return session_node


@pytest.fixture(scope="session")
def endpoint(session_node: NodeProcess | None) -> str:
    """The address of the service."""
    return session_node.url if session_node else str(_ENDPOINT)


@pytest.fixture(scope="session")
def credentials(session_node: NodeProcess | None) -> Credentials:
    """An access key of the service."""
    if session_node:
        return session_node.credentials
    return Credentials(
        os.environ["AWS_ACCESS_KEY_ID"],
        os.environ["AWS_SECRET_ACCESS_KEY"],
        os.environ["AWS_DEFAULT_REGION"],
    )


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[NodeFactory]:
    """Starts a service of the test's own with the given options."""
    if _ENDPOINT:
        pytest.skip("aimed at a service that this suite did not start")
    started: list[NodeProcess] = []

    def start(*options: str) -> NodeProcess:
        node = NodeProcess(tmp_path / f"node-{len(started)}", *options)
        started.append(node)
        return node.start()

    yield start
    for node in started:
        node.close()


@pytest.fixture(scope="session")
def strict_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A second service that keeps AWS's 60-second rules."""
    if _ENDPOINT:
        pytest.skip("aimed at a service that this suite did not start")
    node = NodeProcess(tmp_path_factory.mktemp("strict"), "--aws-waits", "on").start()
    yield node
    node.stop()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetProcess]:
    """Two clusters and a gateway."""
    process = FleetProcess(tmp_path_factory.mktemp("fleet"), "--aws-waits", "off")
    yield process.start()
    process.close()


@pytest.fixture(scope="session")
def current(endpoint: str, credentials: Credentials) -> Iterator[Boto3Client]:
    """The current boto3 (JSON)."""
    client = Boto3Client(endpoint, credentials)
    yield client
    client.close()


@pytest.fixture(scope="session")
def old(endpoint: str, credentials: Credentials) -> Iterator[OldBoto3Client]:
    """The old boto3 (query)."""
    if not LIBRARIES.exists():
        assert "CI" not in os.environ, "the old boto3 is not installed"
        pytest.skip("the old boto3 is not installed: `make test` installs it")
    client = OldBoto3Client(endpoint, credentials)
    yield client
    client.close()


@pytest.fixture(scope="session")
def command_line(endpoint: str, credentials: Credentials) -> CommandLineClient:
    """The `aws` command line."""
    return CommandLineClient(endpoint, credentials)


@pytest.fixture(scope="session")
def raw(endpoint: str, credentials: Credentials) -> RawClient:
    """Single HTTP requests."""
    return RawClient(endpoint, credentials)


@pytest.fixture(params=["current", "old"], ids=["json", "query"])
def sqs(request: pytest.FixtureRequest) -> Client:
    """Every SDK in turn, one for each wire protocol."""
    client: Client = request.getfixturevalue(request.param)
    return client


@pytest.fixture
def fresh_name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Makes unique queue names."""
    test = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[5:50].strip("-")
    return lambda: f"{test}-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def make_queue(current: Boto3Client, fresh_name: Callable[[], str]) -> Callable[..., str]:
    """Makes queues with the given attributes and returns their URLs."""

    def make(**attributes: str) -> str:
        answer = current.call("CreateQueue", QueueName=fresh_name(), Attributes=attributes)
        return str(answer["QueueUrl"])

    return make


@pytest.fixture
def make_fifo(current: Client, fresh_name: Callable[[], str]) -> MakeFifo:
    """Makes FIFO queues with the given attributes."""

    def make(**given: str) -> str:
        return create_fifo_queue(current, fresh_name(), **given)

    return make


@pytest.fixture
def fifo(make_fifo: MakeFifo) -> str:
    """A FIFO queue with every default."""
    return make_fifo()


@pytest.fixture
def queue(make_queue: Callable[..., str]) -> str:
    """The URL of a fresh queue with every default."""
    return make_queue()


# -- the console ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def chromium_of_run() -> Iterator[Any]:
    """A real Chromium; without one on the machine the tests are skipped."""
    with chromium.running() as browser, chromium.set_aside(browser) as used:
        yield used


@pytest.fixture(scope="module")
def chromium_process(chromium_of_run: Any) -> Iterator[Any]:
    """The Chromium of the run, with which the tests of a module can have no event loop of their
    own."""
    with chromium_of_run() as browser:
        yield browser


@pytest.fixture(scope="module")
def kept(chromium_process: Any) -> chromium.Kept:
    """The Chromium of the run, with one context for the tests of a file."""
    return chromium.Kept(chromium_process)


@pytest.fixture
def browser(kept: chromium.Kept) -> Iterator[chromium.Kept]:
    """The Chromium of the run, without what other tests left in it."""
    kept.begin()
    yield kept
    kept.end()


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A service in open mode."""
    variables = {"HOLDFAST_AWS_WAITS": "off"}
    folder = tmp_path_factory.mktemp("opened")
    node = NodeProcess(folder, "--auth", "open", variables=variables).start()
    yield node
    node.close()
