"""The reasons why no answer came, as an operator reads them."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress

import pytest

from cluster.coordination.etcd_wire import HttpWire, NoAnswer, TlsFiles
from compat_tests.made_certificates import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


async def _reason(endpoint: str, tls: ssl.SSLContext | None = None) -> str:
    wire = HttpWire(tls)
    reasons = []
    with pytest.raises(NoAnswer) as posted:
        await wire.post(endpoint, "/", b"", {}, 30)
    with pytest.raises(NoAnswer) as watched:
        async for _ in wire.stream(endpoint, "/", b"", {}, 30):
            pass
    await wire.close()
    assert not posted.value.was_sent
    reasons = [str(posted.value), str(watched.value)]
    assert reasons == reasons[:1] * 2
    return reasons[0]


async def test_an_etcd_that_does_not_run_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    at = f"http://127.0.0.1:{port}"

    assert await _reason(at) == (
        f"etcd cannot be reached at {at}: start it, or correct --etcd (Connection refused)"
    )


async def test_https_in_front_of_an_etcd_without_tls_is_named() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
        at = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"

        reason = await _reason(at, TlsFiles().context())

    assert reason == f"etcd at {at} does not speak TLS: name it with http:// in --etcd"


@pytest.mark.parametrize("resets", [False, True], ids=["ended", "reset"])
async def test_a_connection_that_ends_before_tls_is_named(resets: bool) -> None:
    """Some versions of etcd do that to a client that speaks TLS where none is."""

    async def without_a_word(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        if resets:
            writer.transport.abort()
        else:
            writer.close()

    async with await asyncio.start_server(without_a_word, "127.0.0.1", 0) as server:
        at = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"

        reason = await _reason(at, TlsFiles().context())

    assert reason == (
        f"etcd at {at} does not begin TLS: if it speaks none, name it with http:// in --etcd"
    )


@pytest.mark.parametrize("passes", range(20))
async def test_a_closed_wire_leaves_no_socket_of_a_request_that_was_cancelled(
    authority: Authority, passes: int
) -> None:
    """Over TLS a connection waits for the other side's goodbye; the loop may end before that."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(*authority.sign("member"))
    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=served) as server:
        at = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        wire = HttpWire(ssl.create_default_context(cafile=authority.file))
        asked = asyncio.create_task(wire.post(at, "/", b"", {}, 30))
        for _ in range(passes):
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
        made = list(wire._sockets)

        await wire.close()

        assert [each.fileno() for each in made] == [-1] * len(made)
