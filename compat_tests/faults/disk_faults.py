"""Traffic on a disk that is full, or fails for a while: `python -m
compat_tests.faults.disk_faults`.

The service is never restarted. A round either fills up a small file system and frees it again, or
makes syncs fail (and opening files too) through libfiu's preloaded library. Clients must be able to
retry all errors, sends must work again without a restart, and the judge must find nothing lost.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.facade import ClientError
from compat_tests.faults.lanes import KINDS
from compat_tests.faults.power_loss import interrupt
from compat_tests.faults.run import CommandLine, Fault, Result, run, say, status
from compat_tests.faults.small_disk import small_disk, why_no_small_disk
from compat_tests.node_process import NodeProcess

BACK_SECONDS = 120.0  # time within which sends must be accepted again
FULL_SECONDS = 1.5
_SMALL_DISK = "448m"
_SOME_PAGES, _MANY_PAGES = 1 << 16, 1 << 26
_LIBFIU = Path("/usr/lib/fiu")
_PRELOADED = ("fiu_run_preload.so", "fiu_posix_preload.so")
_FAULTS = (
    ("posix/io/sync/fdatasync",),
    ("posix/io/sync/fdatasync", "posix/io/sync/fsync"),
    ("posix/io/sync/fdatasync", "posix/io/sync/fsync", "posix/io/oc/open"),
)
"""Failure points that fail together. Not writes: sockets and the event loop's wake-up use them
too."""

Strike = Callable[[NodeProcess], None]


def why_no_libfiu() -> str | None:
    """The reason why syncs cannot be made to fail here; None if they can."""
    if shutil.which("fiu-ctrl") is None:
        return "fiu-ctrl is not installed (Debian: fiu-utils)"
    absent = [name for name in _PRELOADED if not (_LIBFIU / name).exists()]
    return f"{_LIBFIU / absent[0]} is not installed (Debian: libfiu0)" if absent else None


def main() -> int:
    """Run from the command line: exits with 0 if all promises were kept, 1 if not, 77 if it cannot
    run."""
    options = CommandLine("a full or failing disk under traffic", rounds=30).parse()
    signal.signal(signal.SIGTERM, interrupt)
    faults = {"full disk": (why_no_small_disk(), full), "failed syncs": (why_no_libfiu(), failing)}
    broken: list[str] = []
    for name, (reason, fail) in faults.items():
        if reason:
            say(f"skipped {name}: {reason}")
            continue
        result = fail(options.rounds, options.seed, options.traffic)
        say(f"{name}: {result.summary}")
        broken += result.broken
    if all(reason for reason, _ in faults.values()):
        return 77
    return status(broken)


def full(rounds: int, seed: int, kinds: tuple[str, ...] = KINDS) -> Result:
    """Run the traffic on a small disk, and fill it up `rounds` times."""
    with small_disk(_SMALL_DISK) as (folder, disk):
        node = NodeProcess(folder, "--aws-waits", "off", data=disk.mounted_at / "data")
        return _run(node, partial(_fill_up, disk.mounted_at), rounds, seed, kinds)


def failing(rounds: int, seed: int, kinds: tuple[str, ...] = KINDS) -> Result:
    """Run the traffic, and make syncs fail for a while, `rounds` times."""
    with tempfile.TemporaryDirectory() as name:
        preload = " ".join(str(_LIBFIU / library) for library in _PRELOADED)
        variables = {"LD_PRELOAD": preload, "FIU_CTRL_FIFO": f"{name}/fiu"}
        node = NodeProcess(Path(name), "--aws-waits", "off", variables=variables)
        strike = partial(_fail_syncs, f"{name}/fiu", random.Random(seed))
        return _run(node, strike, rounds, seed, kinds)


def _run(node: NodeProcess, harm: Strike, rounds: int, seed: int, kinds: tuple[str, ...]) -> Result:
    struck = [0]

    def strike(node: NodeProcess) -> None:
        harm(node)
        _wait_until_accepted(node)
        struck[0] += 1

    try:
        fault = Fault(strike, excuses_faults=True)
        return run(node, fault, rounds=rounds, seed=seed, kinds=kinds)
    except AssertionError as error:
        return Result(f"ended after {struck[0]} faults", [str(error)])
    finally:
        node.close()


def _fill_up(disk: Path, node: NodeProcess) -> None:
    take_all_space(disk, FULL_SECONDS)


def take_all_space(disk: Path, seconds: float) -> None:
    """Fill up the disk for a while."""
    ballast = disk / "ballast"
    pages = _MANY_PAGES
    try:
        with ballast.open("wb") as stream:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                try:
                    os.posix_fallocate(stream.fileno(), os.fstat(stream.fileno()).st_size, pages)
                except OSError:  # it is full
                    pages = max(_SOME_PAGES, pages // 2)
                    time.sleep(0.01)  # takes the space that the service frees meanwhile, too
    finally:
        ballast.unlink()


def _fail_syncs(fifo: str, chance: random.Random, node: NodeProcess) -> None:
    points = chance.choice(_FAULTS)
    _control(fifo, node, [f"enable name={point},failinfo={errno.EIO}" for point in points])
    time.sleep(chance.choice((0.0, 0.1, 1.0, 2.5)))
    _control(fifo, node, [f"disable name={point}" for point in points])


def _control(fifo: str, node: NodeProcess, commands: list[str]) -> None:
    words = ["fiu-ctrl", "-f", fifo]
    for command in commands:
        words += ["-c", command]
    subprocess.run([*words, str(node.pid)], check=True, capture_output=True, timeout=60)


def _wait_until_accepted(node: NodeProcess) -> None:
    """Wait until the service accepts a message again, without a restart."""
    client = Boto3Client(node.url, node.credentials)
    deadline = time.monotonic() + BACK_SECONDS
    while (refusal := _refusal_of_a_send(client)) is not None:
        assert (refusal.status or 0) >= 500, f"not retriable: {refusal}"
        assert time.monotonic() < deadline, f"still refused: {refusal}\n{_told_by_shards(node)}"
        time.sleep(0.1)
    client.close()


def _refusal_of_a_send(client: Boto3Client) -> ClientError | None:
    try:
        url = client.call("CreateQueue", QueueName="probe")["QueueUrl"]
        client.call("SendMessage", QueueUrl=url, MessageBody="probe")
    except ClientError as error:
        return error
    return None


def _told_by_shards(node: NodeProcess) -> str:
    lines = node.log.read_text(errors="replace").splitlines()
    return "\n".join([line for line in lines if '"shard"' in line][-3:])


if __name__ == "__main__":
    sys.exit(main())
