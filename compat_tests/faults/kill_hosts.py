"""Kill a host of a running cluster again and again while a command runs: `python -m
compat_tests.faults.kill_hosts --data holdfast-cluster --every 20 -- pytest ...`.

Ends with the status of the command. The cluster is one of `make cluster`, which starts the host
again; the first host is spared where it is the endpoint.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from compat_tests.cluster_process import ClusterFolder
from compat_tests.faults.run import say


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="kill a host every few seconds")
    parser.add_argument("--data", type=Path, default=Path("holdfast-cluster"))
    parser.add_argument("--every", type=float, default=20.0, help="seconds")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    say(f"seed {options.seed}")
    chance, folder = random.Random(options.seed), ClusterFolder(options.data)
    kills = 0
    variables = {**os.environ, "COMPAT_ATTEMPTS": "5"}  # the default of boto3
    with subprocess.Popen(options.command, env=variables) as process:
        while True:
            try:
                ended = process.wait(options.every)
            except subprocess.TimeoutExpired:
                host = chance.choice(folder.hosts_behind_the_endpoint())
                pid = folder.signal(host, signal.SIGKILL)
                folder.wait_for_another(host, pid)
                folder.wait_until_ready(host)
                kills += 1
            else:
                say(f"{kills} hosts were killed meanwhile")
                return ended


if __name__ == "__main__":
    sys.exit(main())
