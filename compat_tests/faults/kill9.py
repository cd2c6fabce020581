"""Kill the service again and again under traffic, and judge: `python -m compat_tests.faults.kill9
--rounds 50`.

SIGKILL at random moments, and a start on the same folder, under traffic on standard, FIFO and fair
queues, with dead letters and move tasks, and with purges, deletions and restorations of queues.
With `--workers N`, a worker is killed most times, which the supervisor replaces, and else the
supervisor.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

from compat_tests.facade import eventually
from compat_tests.faults.run import CommandLine, Fault, run, say, status
from compat_tests.node_process import NodeProcess
from compat_tests.workers import worker_of


def kill_and_start(node: NodeProcess) -> None:
    """Kill the process at once; its writes have reached the kernel."""
    node.kill()
    node.start()


KILL = Fault(kill_and_start)
_SUPERVISOR_SHARE = 0.25
"""Part of the kills that are the supervisor's."""


def kill_a_worker(moments: random.Random, workers: int, node: NodeProcess) -> None:
    """Kill the worker that leads a shard by chance, or the supervisor. Raises AssertionError if no
    other worker leads the shard in time."""
    shard = moments.randrange(workers)
    killed = worker_of(node, shard)
    if not killed or moments.random() < _SUPERVISOR_SHARE:
        kill_and_start(node)
        return
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: worker_of(node, shard) not in (0, killed))


def main() -> int:
    """Run from the command line; exits with 1 if a promise was broken."""
    line = CommandLine("kill -9 under traffic", rounds=50)
    line.parser.add_argument("--durability", default="fsync", choices=["fsync", "os"])
    line.parser.add_argument("--workers", type=int, default=1)
    options = line.parse()
    fault, given = KILL, ["--aws-waits", "off", "--durability", options.durability]
    if options.workers > 1:
        chance = random.Random(options.seed)
        # Workers without their supervisor answer 503 where they need its records.
        fault = Fault(partial(kill_a_worker, chance, options.workers), excuses_faults=True)
        given += ["--workers", str(options.workers)]
    with tempfile.TemporaryDirectory() as folder:
        node = NodeProcess(Path(folder), *given)
        try:
            result = run(
                node, fault, rounds=options.rounds, seed=options.seed, kinds=options.traffic
            )
        finally:
            node.close()
    say(result.summary)
    return status(result.broken)


if __name__ == "__main__":
    sys.exit(main())
