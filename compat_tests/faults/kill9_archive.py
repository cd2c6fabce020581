"""kill -9 of the service and of its archive jobs, again and again, while messages are archived.

Each round runs traffic on queues that archive deleted messages, with one or two archive jobs at
once; the service or a job, or both, are killed at a random moment. At the end the judge must find
nothing wrong in the queues. The archive must have every message whose delete was acknowledged
exactly once and unchanged, and no other one twice. No message may wait in the service, and no job
may leave a file that the table does not know.

`python -m compat_tests.faults.kill9_archive --rounds 20` (needs the extra packages of the jobs)
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from compat_tests.faults.drain import drain
from compat_tests.faults.fault_history import History, is_body
from compat_tests.faults.judge import judge
from compat_tests.faults.judged_history import Evidence
from compat_tests.faults.kill9 import kill_and_start
from compat_tests.faults.lanes import lanes
from compat_tests.faults.run import CommandLine, endpoint_of, say, status, told
from compat_tests.faults.traffic import Traffic
from compat_tests.lake_files import segments, waiting
from compat_tests.node_process import NodeProcess, command, environment

KILL_S_MAX = 20.0
"""A job takes about fifteen seconds on two cores: it is killed at any point, or ends before."""
JOB_S_MAX = 120.0
LAST_JOBS_MAX = 6
DEAD_S = 3600.0
"""A killed job counts as dead when its notes are ten minutes old; they are made to look so."""
_TAGS = {"holdfast:archive": "all"}
_OPTIONS = ("--aws-waits", "off", "--archive-seal-s", "1", "--snapshot-every-s", "10")


def main() -> int:
    """Exits with 1 if anything was lost, doubled or left over."""
    line = CommandLine("kill -9 of the service and of archive jobs", rounds=20)
    line.parser.set_defaults(traffic=("standard", "fifo", "moves"))
    options = line.parse()
    with tempfile.TemporaryDirectory() as scratch:
        lake = Path(scratch, "lake")
        node = NodeProcess(Path(scratch, "node"), "--lake", str(lake), *_OPTIONS).start()
        lake.mkdir(exist_ok=True)
        traffic = Traffic(endpoint_of(node), options.seed, tags=_TAGS)
        try:
            asyncio.run(_run(lake, node, traffic, options.rounds, options.traffic))
            say(finish(lake, node))
            broken = check(lake, node, traffic.history)
        finally:
            node.close()
    verdict = judge(traffic.history)
    say(told(traffic.history, verdict))
    return status([*broken, *verdict.broken()])


async def _run(
    lake: Path, node: NodeProcess, traffic: Traffic, rounds: int, kinds: tuple[str, ...]
) -> None:
    await traffic.make_queues(kinds)
    work = asyncio.to_thread(_kill, lake, node, rounds, traffic.draw())
    await traffic.run(work, lanes(traffic, kinds))
    await drain(traffic.endpoint, traffic.history)


def _kill(lake: Path, node: NodeProcess, rounds: int, chance: random.Random) -> None:
    killed: Counter[str] = Counter()
    for number in range(1, rounds + 1):
        run_round(lake, node, chance, killed)
        say(f"round {number}: {killed['services']} services and {killed['jobs']} jobs killed")


def start_job(lake: Path, node: NodeProcess) -> subprocess.Popen[str]:
    """An archive job, the first of a group of processes."""
    options = ("--lake", str(lake), "--data", str(node.data), "--master", "local[2,4]")
    return subprocess.Popen(
        command("jobs", "archive", *options),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def kill_job(job: subprocess.Popen[str]) -> bool:
    """Kill it with its Java; True when it was still running."""
    if job.stdout is None or job.stdout.closed:
        return False
    was_running = job.poll() is None
    with suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.communicate()
    return was_running


def run_round(lake: Path, node: NodeProcess, chance: random.Random, killed: Counter[str]) -> None:
    """One or two jobs, and kills."""
    jobs = [start_job(lake, node) for _ in range(chance.choice((1, 1, 2)))]
    end = time.monotonic() + JOB_S_MAX
    kill_at = time.monotonic() + chance.uniform(0.0, KILL_S_MAX)
    kill_node_at = time.monotonic() + chance.uniform(0.0, KILL_S_MAX)
    kills_job = chance.random() < 0.7
    kills_node = chance.random() < 0.7
    while time.monotonic() < end and any(job.poll() is None for job in jobs):
        time.sleep(0.05)
        if kills_job and time.monotonic() > kill_at:
            kills_job = False
            killed["jobs"] += kill_job(jobs[0])
        if kills_node and time.monotonic() > kill_node_at:
            kills_node = False
            kill_and_start(node)
            killed["services"] += 1
    for job in jobs:
        killed["jobs"] += kill_job(job)


def finish(lake: Path, node: NodeProcess) -> str:
    """Archive the rest with jobs that are not killed; returns the last one's output."""
    for note in lake.glob("runs/*.json"):
        long_ago_s = note.stat().st_mtime - DEAD_S
        os.utime(note, (long_ago_s, long_ago_s))
    said = ""
    for _ in range(LAST_JOBS_MAX):
        job = start_job(lake, node)
        said, _ = job.communicate()
        if job.returncode == 0 and "nothing to archive" in said:
            break
    return said.strip()


def check(lake: Path, node: NodeProcess, history: History) -> list[str]:
    """Faults of the archive and of its files."""
    table = DeltaTable(str(lake / "archive"))
    rows = table.to_pyarrow_table(columns=["message_id", "body"]).to_pylist()
    faults = compare(history, rows)
    known = set(table.get_add_actions(flatten=True)["path"].to_pylist())
    on_disk = {
        path.relative_to(lake / "archive").as_posix()
        for path in lake.glob("archive/account=*/**/*")
        if path.is_file()
    }
    faults["orphans"] = sorted(on_disk - known)
    faults["missing files"] = sorted(known - on_disk)
    faults["segments left"] = [path.name for path in segments(lake)]
    if waiting(node)["messages"]:
        faults["waiting"] = [str(waiting(node))]
    say(
        f"{len(rows)} rows in version {table.version()}; "
        + ", ".join(f"{name} {len(each)}" for name, each in faults.items())
    )
    return [f"archive, {name}: {each[:3]}" for name, each in faults.items() if each]


def compare(history: History, rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Messages that are not in the archive's table exactly once and unchanged after a delete."""
    evidence = Evidence(history)
    names = [row["body"].partition("|")[0] for row in rows]
    found = Counter(names)
    changed = [
        name
        for name, row in zip(names, rows, strict=True)
        if name not in evidence.sends or not is_body(row["body"], evidence.sends[name][0].content)
    ]
    return {
        "lost": sorted(evidence.deleted.keys() - found.keys()),
        "twice": sorted(name for name, count in found.items() if count > 1),
        "not deleted": sorted(found.keys() - evidence.deletes.keys()),
        "other bodies": changed,
    }


if __name__ == "__main__":
    sys.exit(main())
