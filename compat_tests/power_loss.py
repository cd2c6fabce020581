"""Cut the power under load, again and again, and count what the service owes.

The data folder lies on a file system of its own (`loop_disk.py`) that loses what was not synced. The loads are those of
`kill9.py` (sends, receives, deletes, visibility changes), `kill9_fifo.py` (order, duplicates) and `kill9_moves.py` (dead
letters, move tasks), and so is what is looked at in the end: with `--durability fsync` every acknowledgement holds.

With `--durability os` the same run must show losses. It always ends with a few rounds of that, so that a test which could
not see a loss fails.

`python -m compat_tests.power_loss --rounds 200`
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

from compat_tests import kill9, kill9_fifo, kill9_moves
from compat_tests.kill9 import Crash, Run, say
from compat_tests.loop_disk import FILE_SYSTEMS, LoopDisk, undisturbed, why_not
from compat_tests.node_process import NodeProcess

LOADS: dict[str, Run] = {
    "standard": kill9.run_and_tell,
    "fifo": kill9_fifo.run,
    "moves": kill9_moves.run,
}
UNSYNCED_ROUNDS = 3
"""Of `--durability os`. One already loses all that was sent since the kernel last wrote, at most 30 s."""


def main() -> int:
    """Run from the command line: 0 kept its word, 1 broke it, 77 cannot be run here."""
    parser = argparse.ArgumentParser(description="power loss under load")
    parser.add_argument("--rounds", type=int, default=200, help="in all")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    say(f"seed {seed}")
    reasons = {kind: why_not(kind) for kind in FILE_SYSTEMS}
    for kind, reason in reasons.items():
        if reason:
            say(f"skipped {kind}: {reason}")
    kinds = [kind for kind, reason in reasons.items() if reason is None]
    if not kinds:
        return 77
    signal.signal(signal.SIGTERM, interrupt)
    each = -(-options.rounds // (len(kinds) * len(LOADS)))
    broken: list[str] = []
    for number, kind in enumerate(kinds):
        for name, load in LOADS.items():
            summary, found = run(kind, load, rounds=each, seed=seed + number)
            say(f"{kind}, {name}: {summary}")
            broken += found
    for kind in kinds:
        summary, lost = run(
            kind, LOADS["standard"], rounds=UNSYNCED_ROUNDS, seed=seed, durability="os"
        )
        say(f"{kind}, not synced: {summary}")
        if not any("never seen" in line for line in lost):
            broken.append(f"{kind}: nothing was lost without a sync, so this run proves nothing")
    for line in broken[:60]:
        say(line)
    return 1 if broken else 0


def interrupt(number: int, frame: FrameType | None) -> None:
    """Ends the run as Ctrl-C does: for SIGTERM, so that everything is unmounted then too."""
    raise KeyboardInterrupt


def run(
    file_system: str, load: Run, *, rounds: int, seed: int, durability: str = "fsync"
) -> tuple[str, list[str]]:
    """Run one load over a fresh disk, cutting its power `rounds` times; a summary and every broken word."""
    with node_on_disk(file_system, "--aws-waits", "off", "--durability", durability) as (
        node,
        disk,
    ):
        crash = Crash(partial(_lose_power, disk, random.Random(seed)), excuses_faults=False)
        try:
            return load(node, rounds=rounds, seed=seed, crash=crash)
        except AssertionError as error:  # it does not start any more
            return "ended early", [str(error)]


@contextmanager
def node_on_disk(file_system: str, *options: str) -> Iterator[tuple[NodeProcess, LoopDisk]]:
    """A service that was not started yet, with its data folder on a disk of its own."""
    with tempfile.TemporaryDirectory() as name, LoopDisk(Path(name), file_system) as disk:
        node = NodeProcess(Path(name), *options, data=disk.mounted_at / "data")
        try:
            yield node, disk
        finally:
            with undisturbed():
                node.close()
                disk.__exit__()


def _lose_power(disk: LoopDisk, chance: random.Random, node: NodeProcess) -> None:
    node.freeze()  # else a sync that is under way may be told to have succeeded: seen in 2 of 150 cuts of xfs
    disk.cut_power(chance)
    node.kill()
    disk.unmount()
    disk.mount()
    node.start()


if __name__ == "__main__":
    sys.exit(main())
