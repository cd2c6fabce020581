"""Clients without a key that send bytes which are no request, or go away amid one: the memory of
the service."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress

import pytest

from compat_tests.clients.boto3_client import connect
from compat_tests.conftest import NodeFactory

CLIENTS = 80
MIB = 1 << 20
GROWTH_MAX = 64 * MIB
"""Most of it is what the first reads take for good; each client's bytes together are 240 MiB."""
_HEAD = b"POST / HTTP/1.1\r\nHost: h\r\n"
_CHUNK = b"10000\r\n%b\r\n" % (b"x" * 65536)
SENT = {
    "a long target": b"GET /" + b"a" * (3 * MIB),
    "more than the body": _HEAD + b"Content-Length: 1\r\n\r\nx" + b" " * (3 * MIB),
    "chunks that end malformed": _HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + _CHUNK * 48 + b"x",
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads another process's memory, as on Linux")
@pytest.mark.parametrize("sent", SENT.values(), ids=SENT)
def test_they_leave_no_memory_behind(start_node: NodeFactory, sent: bytes) -> None:
    node = start_node()
    address = ("127.0.0.1", int(node.url.rsplit(":", 1)[1]))
    before = node.memory

    for _ in range(CLIENTS):
        with socket.create_connection(address, timeout=30) as client, suppress(ConnectionError):
            client.sendall(sent)
            while client.recv(65536):
                pass
    assert connect(node.url, node.credentials).list_queues().get("QueueUrls", []) == []

    assert node.memory - before < GROWTH_MAX
