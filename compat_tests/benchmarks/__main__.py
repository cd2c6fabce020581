"""Benchmarks of the service, alone or in turn with another SQS endpoint.

`python -m compat_tests.benchmarks` starts a node on a temporary folder (TMPDIR chooses the disk) and drives it over loopback
from this process. The exit status is 1 when a call failed or an acknowledged message was lost. Figures of a scenario with
many connections are those of a loaded server: latency is then mostly waiting in line.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import uvloop

from compat_tests.benchmarks.measurement import Measurement, measure
from compat_tests.benchmarks.report import table, write_json
from compat_tests.benchmarks.scenarios import SCENARIOS
from compat_tests.benchmarks.wire import Endpoint
from compat_tests.facade import Credentials
from compat_tests.node_process import NodeProcess

_CONNECTIONS_MAX = 1000  # below the usual limit of 1024 open files
_SECONDS_MAX = 600.0


class MeasuredNode(NodeProcess):
    """A node whose process can be looked at."""

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process is not None, "it does not run"
        return self._process.pid


def main() -> int:
    """Run from the command line."""
    options = _options()
    others = _other_endpoints(options)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        node = MeasuredNode(Path(folder), "--durability", options.durability)
        try:
            node.start()
            ours = Endpoint("holdfast", node.url, node.credentials, node.pid)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                measurements = runner.run(_run_all(options, [ours, *others]))
            correct = _report(options, measurements)
            node.stop()
        finally:
            node.close()
    return 0 if correct else 1


def _report(options: argparse.Namespace, measurements: list[Measurement]) -> bool:
    """Print and write what came out; True when all of it was correct."""
    print(table(measurements), flush=True)
    if options.json is not None:
        settings = {name: str(value) for name, value in vars(options).items() if name != "secret"}
        write_json(options.json, settings, measurements)
    wrong = [one for one in measurements if not one.correct]
    for one in wrong:
        what = f"{one.scenario}, {one.connections} connections, {one.endpoint}"
        lost = "an unknown number" if one.lost is None else one.lost
        print(f"{what}: {one.errors} errors, {lost} lost; {one.complaints}", file=sys.stderr)
    return not wrong


async def _run_all(options: argparse.Namespace, endpoints: list[Endpoint]) -> list[Measurement]:
    """Every scenario in every round on each endpoint in turn, so that a noisy machine hits all of them."""
    measurements = []
    for name, connections in _plan(options):
        for number in range(options.rounds):
            for endpoint in endpoints:
                one = await measure(
                    name, endpoint, connections, seconds=options.seconds, backlog=options.backlog
                )
                measurements.append(one)
                _show_progress(number, one)
    return measurements


def _plan(options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    for name in options.scenario:
        fixed = SCENARIOS[name].connections
        for connections in options.connections if fixed is None else [fixed]:
            yield name, connections


def _show_progress(number: int, one: Measurement) -> None:
    print(
        f"{one.scenario}, {one.connections} connections, round {number + 1}, {one.endpoint}: "
        f"{one.messages_per_second:,.0f} messages/s",
        file=sys.stderr,
        flush=True,
    )


def _other_endpoints(options: argparse.Namespace) -> list[Endpoint]:
    if options.against is None:
        return []
    credentials = Credentials(options.access_key, options.secret, options.region)
    return [Endpoint("other", options.against, credentials, options.against_pid)]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks", description="benchmarks of the service")
    names = list(SCENARIOS)
    parser.add_argument("--scenario", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--connections", nargs="+", type=int, default=[32, 256])
    parser.add_argument("--seconds", type=float, default=3.0, help="measured, for each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backlog", type=int, default=100_000, help="messages of a drain")
    parser.add_argument("--durability", default="fsync", choices=["fsync", "os", "memory"])
    parser.add_argument("--json", type=Path, metavar="FILE")
    other = parser.add_argument_group("another endpoint, measured in turn")
    other.add_argument("--against", metavar="URL", help="plain http")
    other.add_argument("--against-pid", type=int, help="its process, for its CPU and memory")
    other.add_argument("--access-key", default="AKIDEXAMPLE")
    other.add_argument("--secret", default="wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
    other.add_argument("--region", default="us-east-1")
    options = parser.parse_args()
    if not all(1 <= count <= _CONNECTIONS_MAX for count in options.connections):
        parser.error(f"--connections must be from 1 to {_CONNECTIONS_MAX}")
    if not 0 < options.seconds <= _SECONDS_MAX:
        parser.error(f"--seconds must be above 0 and at most {_SECONDS_MAX:g}")
    if options.rounds < 1 or options.backlog < 1:
        parser.error("--rounds and --backlog must be at least 1")
    if options.against is not None and not options.against.startswith("http://"):
        parser.error("--against must begin with http://")
    return options


if __name__ == "__main__":
    sys.exit(main())
