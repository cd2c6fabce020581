"""Two servers of HTTP that give each request the same answer, as long as one to a SendMessage: what
a reader may take for the cost of HTTP alone.

They are installed in a folder of their own, see the Makefile.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from compat_tests.benchmarks.elasticmq import NotHere

SERVERS = ("granian-static", "uvicorn-static")
_ROOT = Path(__file__).parents[2]
FOLDER = _ROOT / ".venv" / "static-servers"
BODY = (
    b'{"MD5OfMessageBody":"5d41402abc4b2a76b9719d911017c592",'
    b'"MessageId":"01234567-89ab-4cde-8f01-23456789abcd"}'
)
_REQUEST_ID = "01234567-89ab-4cde-8f01-23456789abcd"
_HEADERS = [("x-amzn-requestid", _REQUEST_ID), ("content-type", "application/x-amz-json-1.0")]
_RAW_HEADERS = [(name.encode(), value.encode()) for name, value in _HEADERS]


async def rsgi(scope: Any, protocol: Any) -> None:
    """The answer by granian's own interface."""
    await protocol()
    protocol.response_bytes(200, _HEADERS, BODY)


async def asgi(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """The answer by uvicorn's interface."""
    assert scope["type"] == "http"
    while (await receive()).get("more_body"):
        continue
    length = (b"content-length", b"%d" % len(BODY))
    await send(
        {"type": "http.response.start", "status": 200, "headers": [*_RAW_HEADERS, length]},
    )
    await send({"type": "http.response.body", "body": BODY})


def command(name: str, port: int) -> list[str]:
    """The command that starts one of SERVERS on a port; needs `variables`. Raises NotHere."""
    if not (FOLDER / ".installed").is_file():
        raise NotHere("it is not installed: make .venv/static-servers/.installed")
    server, app = name.removesuffix("-static"), f"{__name__}:"
    listening = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    if server == "granian":
        options = [*listening, "--interface", "rsgi", "--loop", "uvloop", f"{app}rsgi"]
    else:
        quiet = ["--no-access-log", "--lifespan", "off", "--log-level", "warning"]
        options = [*listening, *quiet, "--loop", "uvloop", "--http", "httptools", f"{app}asgi"]
    return [sys.executable, "-m", server, *options]


def variables() -> dict[str, str]:
    """The environment's variables by which Python finds the servers and this file."""
    return {"PYTHONPATH": f"{FOLDER}:{_ROOT}"}
