"""The reasons why no answer came, as an operator reads them."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest

from cluster.coordination.etcd_wire import HttpWire, NoAnswer, TlsFiles


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
