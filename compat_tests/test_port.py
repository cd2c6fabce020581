"""The port as clients see it: TLS with boto3, changing certificates, and no file descriptors."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from compat_tests.clients.boto3_client import CONFIG, connect
from compat_tests.conftest import NodeFactory
from compat_tests.facade import Credentials
from compat_tests.made_certificates import Authority, Pair
from compat_tests.node_process import NodeProcess, command, environment, run_command

SECONDS = 60.0
"""Bound of waits for steps that take a second or two."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Signs the certificates of service and client."""
    return Authority(tmp_path)


@pytest.fixture
def pair(authority: Authority) -> Pair:
    """The service's."""
    return authority.sign("server")


def _client(url: str, credentials: Credentials, verify: Path, pair: Pair | None = None) -> Any:
    """A boto3 client over https."""
    config = dict(CONFIG)
    if pair is not None:
        config["client_cert"] = (str(pair.certificate), str(pair.key))
    return boto3.client(
        "sqs",
        endpoint_url=url,
        aws_access_key_id=credentials.access_key_id,
        aws_secret_access_key=credentials.secret_access_key,
        region_name=credentials.region,
        verify=str(verify),
        config=Config(**config),
    )


def _tls_options(pair: Pair, *more: str) -> tuple[str, ...]:
    return ("--tls-certificate", str(pair.certificate), "--tls-key", str(pair.key), *more)


def test_boto3_speaks_tls_with_a_private_authority(
    start_node: NodeFactory, authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    node = start_node(*_tls_options(pair))
    assert node.url.startswith("https://127.0.0.1:")
    assert f"AWS_ENDPOINT_URL={node.url}" in node.output()
    client = _client(node.url, node.credentials, authority.file)

    url = client.create_queue(QueueName="q")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="x")

    assert url.startswith(node.url)
    assert client.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "x"
    strange = Authority(tmp_path, "stranger").file
    with pytest.raises(BotoCoreError):
        _client(node.url, node.credentials, strange).list_queues()
    with pytest.raises(ClientError, match="speaks https"):
        connect(node.url.replace("https", "http"), node.credentials).list_queues()


def test_client_certificates_are_required_and_certificates_are_reloaded(
    start_node: NodeFactory, authority: Authority, pair: Pair
) -> None:
    node = start_node(*_tls_options(pair, "--tls-client-ca", str(authority.file)))
    known = authority.sign("client")
    client = _client(node.url, node.credentials, authority.file, known)
    assert "QueueUrls" not in client.list_queues()
    with pytest.raises(BotoCoreError):
        _client(node.url, node.credentials, authority.file).list_queues()

    pair.key.write_bytes(b"not a key")
    _until(lambda: "certificate_not_reloaded" in node.log_tail())
    assert _subject(node, authority, known) == "server"
    renewed = authority.sign("renewed")
    renewed.key.replace(pair.key)
    renewed.certificate.replace(pair.certificate)
    _until(lambda: _subject(node, authority, known) == "renewed")

    assert client.list_queues()["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert node.log_tail().count("certificate_not_reloaded") <= 2, "said each second"


def _subject(node: NodeProcess, authority: Authority, pair: Pair) -> str:
    """The subject of the service's certificate."""
    context = ssl.create_default_context(cafile=authority.file)
    context.load_cert_chain(*pair)
    port = int(node.url.rsplit(":", 1)[1])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        peer: Any = connection.getpeercert()
        return str(peer["subject"][0][0][1])


def _until(condition: Any) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)


def test_files_that_cannot_be_used_stop_the_start_in_one_line(
    authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    other = authority.sign("other")

    done = run_command(
        "serve", "--port", "0", "--data", str(tmp_path / "data"),
        "--tls-certificate", str(pair.certificate), "--tls-key", str(other.key),
    )  # fmt: skip

    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "do not belong together" in done.stderr
    assert not done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="limits another process, which Linux can")
def test_process_without_file_descriptors_serves_its_clients_and_recovers(
    start_node: NodeFactory,
) -> None:
    node = start_node()
    client = connect(node.url, node.credentials)
    url = client.create_queue(QueueName="q")["QueueUrl"]
    address = ("127.0.0.1", int(node.url.rsplit(":", 1)[1]))

    node.limit_descriptors(node.descriptors() + 3)
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.create_connection(address, timeout=30))
        _until(lambda: "cannot_accept" in node.log_tail())
        for _ in range(20):
            client.send_message(QueueUrl=url, MessageBody="x")

    fresh = connect(node.url, node.credentials)
    assert fresh.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "x"
    assert node.log_tail().count("cannot_accept") == 1


def test_a_start_takes_as_many_file_descriptors_as_it_may(tmp_path: Path) -> None:
    line = command("serve", "--port", "0", "--shards", "8", "--data")
    few, none = (
        ["sh", "-c", f'ulimit {limit} && exec "$@"', "sh", *line, str(tmp_path / limit[1])]
        for limit in ("-Sn 40", "-n 40")
    )
    with subprocess.Popen(few, stdout=subprocess.PIPE, text=True, env=environment()) as started:
        assert started.stdout is not None
        assert any(line.startswith("listening on") for line in started.stdout)
        started.terminate()
    done = subprocess.run(none, capture_output=True, text=True, env=environment(), check=False)

    assert done.returncode == 1
    assert "this process may open 40 files at most, and 8 shards need 110 to start" in done.stderr
    assert not (tmp_path / "n").exists()
