"""The `holdfast` command, and `python -m sqs_api`: the command line in an isolated process."""

from __future__ import annotations

import gc
import os
import signal
import sys


def main() -> None:
    """Isolate this process from the current folder and the environment's Python settings, so that
    no foreign `auth` or `storage` package is imported. (-I would also hide packages of a `pip
    install --user`.)"""
    _open_closed_streams()
    if not (sys.flags.ignore_environment and sys.flags.safe_path):
        os.execv(sys.executable, [sys.executable, "-EP", "-m", "sqs_api", *sys.argv[1:]])
    if os.environ.get("HOLDFAST_NATIVE") == "off":
        sys.modules["holdfast_native"] = None  # type: ignore[assignment]  # cannot be imported
    # structlog imports it where it is installed, for tracebacks that no log of ours shows.
    sys.modules["rich"] = None  # type: ignore[assignment]  # cannot be imported
    # Else pydantic reads the notes of all installed packages, and runs those that are its plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # After the isolation: to import all commands takes longer than to start Python. They are no
    # garbage; looking for some among them would take a sixth of that time.
    gc.disable()
    is_interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_interruptible:  # Ctrl-C ends it: the stack of an import tells nobody anything
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1:] in (["lake-search"], ["lake-archived"]):
        from sqs_api.archiving.lake_process import run
    else:
        from sqs_api.commands.command_line import run

    if is_interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.freeze()
    gc.enable()
    run()


def _open_closed_streams() -> None:
    """Open what of standard input, output and error was closed, as nothing. Else a socket or a file
    of the service gets the number, and what is printed goes there; uvloop aborts on such ones."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


if __name__ == "__main__":
    main()
