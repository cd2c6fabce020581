"""Run the tests beside a load that occupies every processor: `python -m compat_tests.loaded [ARGUMENTS OF PYTEST]`."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time

LONGEST_S = 2 * 3600
PARALLEL = ("--numprocesses", "auto", "--dist", "loadfile")


def main(arguments: list[str]) -> int:
    """Start the load, run the tests, end the load; the exit status is pytest's."""
    context = multiprocessing.get_context("spawn")
    loops = [
        context.Process(target=_burn, args=(os.getpid(),), daemon=True)
        for _ in range(os.cpu_count() or 1)
    ]
    for loop in loops:
        loop.start()
    try:
        return subprocess.run(
            [sys.executable, "-m", "pytest", *PARALLEL, *arguments], check=False
        ).returncode
    finally:
        for loop in loops:
            loop.kill()
            loop.join()


def _burn(parent: int) -> None:
    """Use a processor until killed, until the parent is gone, or for the longest time."""
    until = time.monotonic() + LONGEST_S
    while os.getppid() == parent and time.monotonic() < until:
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
