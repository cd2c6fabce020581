"""The Spark master that --master names: what it may be, and whether it can be reached.

Spark itself takes more than a minute to give up a master that is not there.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from queue import Empty, SimpleQueue
from urllib.parse import urlsplit

PATIENCE_S = 5.0
"""Time in which a master must accept a connection."""
_HEAD_OF_A_FRAME = bytes([0, 0, 0, 0, 0, 0, 0, 21])
"""Spark waits silently for the rest; the web page beside a master, an easy mistake, does not."""
SILENCE_S = 1.0
_LOCAL = re.compile(
    r"local(\[(\*|[1-9][0-9]*)( *, *[1-9][0-9]*)?\])?"
    r"|local-cluster\[ *[1-9][0-9]*( *, *[1-9][0-9]*){2} *\]"
).fullmatch
_ADDRESS = re.compile(r"(?P<host>[\w.-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})").fullmatch
_STANDALONE, _KUBERNETES = "spark://", "k8s://"

Address = tuple[str, int]


class WrongMaster(Exception):
    """The text is not that of a Spark master."""


class MasterUnreachable(Exception):
    """The master accepts no connection; the text gives the reason in one line."""


def addresses_of(master: str) -> list[Address]:
    """The addresses of a master, of which one must be reached; none for a local one and for YARN,
    whose address is in its configuration. Raises WrongMaster."""
    if _LOCAL(master) or master == "yarn":
        return []
    if master.startswith(_STANDALONE):
        return [_address(each, master) for each in master.removeprefix(_STANDALONE).split(",")]
    if master.startswith(_KUBERNETES):
        server = master.removeprefix(_KUBERNETES)
        url = urlsplit(server if "://" in server else f"https://{server}")
        port = {"http": 80, "https": 443}.get(url.scheme)
        if port is not None:
            text = url.netloc
            return [_address(text if _ADDRESS(text) else f"{text}:{port}", master)]
    raise WrongMaster(
        f"{master} is no Spark master: give local[*], spark://HOST:PORT, yarn or k8s://HOST:PORT"
    )


def _address(text: str, master: str) -> Address:
    found = _ADDRESS(text)
    if found is None or not 0 < int(found["port"]) < 1 << 16:
        raise WrongMaster(f"{master} is no Spark master: {text or 'nothing'} is not HOST:PORT")
    return found["host"].strip("[]"), int(found["port"])


def reach(master: str) -> None:
    """Connect to one of the master's addresses, within PATIENCE_S. Raises WrongMaster,
    MasterUnreachable."""
    addresses = addresses_of(master)
    if not addresses:
        return
    answers: SimpleQueue[OSError | None] = SimpleQueue()
    for address in addresses:
        # Looking up a name cannot be interrupted, so nobody waits for the thread.
        given = (address, master.startswith(_STANDALONE), answers)
        threading.Thread(target=_connect, args=given, daemon=True).start()
    until_s = time.monotonic() + PATIENCE_S
    reason = f"no answer in {PATIENCE_S:g} s"
    for _ in addresses:
        try:
            error = answers.get(timeout=max(0.0, until_s - time.monotonic()))
        except Empty:
            break
        if error is None:
            return
        reason = error.strerror or str(error)
    raise MasterUnreachable(f"cannot reach the Spark master {master}: {reason}")


def _connect(address: Address, is_standalone: bool, answers: SimpleQueue[OSError | None]) -> None:
    try:
        with socket.create_connection(address, timeout=PATIENCE_S) as stream:
            is_web = is_standalone and _is_web_server(stream)
        answers.put(OSError("a web server answers there") if is_web else None)
    except OSError as error:
        answers.put(error)
    except ValueError as error:  # a name that cannot be one, such as with empty labels
        answers.put(OSError(str(error)))


def _is_web_server(stream: socket.socket) -> bool:
    stream.settimeout(SILENCE_S)
    stream.sendall(_HEAD_OF_A_FRAME)
    try:
        return stream.recv(4) == b"HTTP"
    except TimeoutError:
        return False
