"""`make cluster` as its user meets it: what it prints works, and nobody else gets at its parts."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.cluster_process import HOSTS, MEMBERS, ClusterProcess, is_well
from compat_tests.facade import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "COMPAT_ENDPOINT" in os.environ, reason="aimed at a service that this suite did not start"
    ),
]
BIN = str(Path(sys.executable).parent)
WITHOUT_HOLDFAST = {
    "PATH": os.pathsep.join(
        folder for folder in os.environ["PATH"].split(os.pathsep) if folder != BIN
    )
}
"""The PATH of a user who has installed nothing."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    process = ClusterProcess(tmp_path_factory.mktemp("cluster"), variables=WITHOUT_HOLDFAST)
    yield process.start()
    process.close()


def test_the_endpoint_and_the_key_are_printed_and_work(cluster: ClusterProcess) -> None:
    exports = cluster.exports()
    assert exports["AWS_ENDPOINT_URL"] == cluster.url == cluster.parts.cluster().endpoint
    assert exports["AWS_REGION"] == exports["AWS_DEFAULT_REGION"] == "us-east-1"
    assert set(cluster.parts.cluster().processes) - {"haproxy"} == {*HOSTS, *MEMBERS}
    client = Boto3Client(cluster.url, cluster.credentials)

    assert client.call("ListQueues") == {}

    client.close()
    others = cluster.parts.cluster().hosts.values()
    assert all(url in cluster.output() for url in others)
    assert all(is_well(f"{url}/readyz") for url in others)


def pasted(cluster: ClusterProcess, *commands: str) -> str:
    """The output of commands in a new shell, behind the lines that the start printed."""
    printed, _, _ = cluster.output().rpartition("listening on")
    done = subprocess.run(
        ["sh", "-e", "-c", "\n".join((printed, *commands))],
        env={**WITHOUT_HOLDFAST, "HOME": str(cluster.data)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not Path(BIN, "aws").exists(), reason="there is no aws beside Python")
def test_the_printed_commands_work_as_they_are_printed(cluster: ClusterProcess) -> None:
    (another,) = re.findall(r"^# another key: (.*)$", cluster.output(), re.MULTILINE)
    (aws,) = re.findall(r"^# .*(aws --endpoint-url .*)$", cluster.output(), re.MULTILINE)

    assert re.search("^export AWS_ACCESS_KEY_ID=AKIA", pasted(cluster, another))
    assert pasted(cluster, "aws() { " + f"'{BIN}/aws' \"$@\"; }}", aws) == ""
    assert "visible" in pasted(cluster, "holdfast queues list")
    assert pasted(cluster, "holdfast cluster status").startswith("cluster holdfast, as host")


def test_an_open_cluster_needs_no_signature_and_says_what_its_end_waits_for(
    tmp_path: Path,
) -> None:
    cluster = ClusterProcess(tmp_path, "--auth", "open", variables=WITHOUT_HOLDFAST)
    try:
        cluster.start()
        unsigned = Request(
            cluster.url,
            b"{}",
            {"X-Amz-Target": "AmazonSQS.ListQueues", "Content-Type": "application/x-amz-json-1.0"},
        )
        with urlopen(unsigned) as answer:
            assert answer.status == 200
        assert "visible" in pasted(cluster, "unset AWS_ACCESS_KEY_ID", "holdfast queues list")
        os.kill(cluster.pid, signal.SIGINT)
        eventually(lambda: not cluster.running)
        *balancer, hosts, etcd, leader = cluster.log_tail().splitlines()
    finally:
        cluster.close()

    assert balancer in ([], ["holdfast: waits for the end of haproxy"])
    assert hosts == "holdfast: waits for the end of a, b, c"
    assert sorted(re.findall(r"etcd-\d", etcd + leader)) == [*MEMBERS]


@pytest.mark.parametrize("member", MEMBERS)
def test_etcd_answers_only_who_has_its_certificates(cluster: ClusterProcess, member: str) -> None:
    """Other users of this machine have none, and cannot read those in the folder."""
    stranger = ssl.create_default_context()
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE

    for purpose in ("client", "peers"):
        address = cluster.parts.etcd_address(member, purpose)
        assert not _answers(address, None)
        assert not _answers(address, stranger)
    assert _answers(cluster.parts.etcd_address(member, "client"), cluster.parts.etcd_tls())


def _answers(address: tuple[str, int], tls: ssl.SSLContext | None) -> bool:
    request = b"GET /version HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n"
    with closing(socket.create_connection(address)) as connection:
        try:
            if tls is not None:
                connection = tls.wrap_socket(connection, server_hostname=address[0])
            connection.sendall(request)
            return b" 200 " in connection.recv(100)
        except (ssl.SSLError, ConnectionError):
            return False
        finally:
            connection.close()


def test_no_secret_of_the_cluster_is_readable_or_shown(cluster: ClusterProcess) -> None:
    assert not [file for file in cluster.data.rglob("*") if file.lstat().st_mode & 0o077]
    key = (cluster.data / "etcd-certificates/client/peer.key").read_text().splitlines()[1]
    shown = cluster.output() + cluster.log_tail(1000)
    for pid in cluster.parts.cluster().processes.values():
        shown += Path(f"/proc/{pid}/cmdline").read_text()
    assert key not in shown
    assert cluster.credentials.secret_access_key not in shown.replace(cluster.output(), "")
