"""The program of `compat_tests/warm_starts.py`: it reads the code of `holdfast`, and its copies
become the commands that it is asked for.

It is no module of the tests: the service's code is not imported into their processes.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Any, NoReturn

_REQUEST_BYTES = 100_000
_STANDARD = 3
"""Descriptors of standard input, output and error."""
_CODE = (
    "sqs_api.commands.command_line",
    "sqs_api.commands.supervised",
    "sqs_api.commands.worker_main",
    "sqs_api.node",
    "sqs_api.start_refusals",
    "uvloop",
)
"""All that `holdfast serve` on one host imports, and what most commands do."""


def main(control: socket.socket) -> None:
    """Start commands until the other end of the socket is closed."""
    _read_code()
    gc.freeze()
    ended, note = os.pipe()
    os.set_blocking(note, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(note, warn_on_full_buffer=False)
    control.send(b"{}")
    while True:
        ready, _, _ = select.select([control.fileno(), ended], [], [])
        if ended in ready:
            os.read(ended, _REQUEST_BYTES)
            _tell_what_ended(control)
        if control.fileno() in ready:
            message, descriptors, _, _ = socket.recv_fds(control, _REQUEST_BYTES, _STANDARD)
            if not message:
                return
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                control.close()
                os.close(ended)
                os.close(note)
                _become(json.loads(message), descriptors)
            for each in descriptors:
                os.close(each)
            handle = os.pidfd_open(pid)
            socket.send_fds(control, [json.dumps({"started": pid}).encode()], [handle])
            os.close(handle)


def _read_code() -> None:
    """As the command's own start does."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    sys.modules["rich"] = None  # type: ignore[assignment]  # cannot be imported
    if os.environ.get("HOLDFAST_NATIVE") == "off":
        sys.modules["holdfast_native"] = None  # type: ignore[assignment]  # cannot be imported
    gc.disable()
    for module in _CODE:
        with suppress(ImportError):  # uvloop may be missing
            importlib.import_module(module)


def _tell_what_ended(control: socket.socket) -> None:
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            status = os.waitstatus_to_exitcode(found[1])
            control.send(json.dumps({"ended": found[0], "status": status}).encode())


def _become(asked: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Be the command, in a copy of the process."""
    for standard, given in enumerate(descriptors):
        os.dup2(given, standard)
        os.close(given)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv[1:] = asked["arguments"]
    gc.enable()
    importlib.import_module("sqs_api.commands.command_line").run()
    raise AssertionError("a command ends its process")


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
