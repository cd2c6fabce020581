"""Holdfast beside other services, or beside another Holdfast.

`python -m compat_tests.benchmarks` starts the services on a temporary folder (TMPDIR chooses the
disk), drives them over loopback from this process, one after the other in alternating bursts, and
writes RESULTS.md and results.svg. The exit status is 1 when a call to Holdfast failed or one of its
acknowledged messages was lost. With many connections the server is saturated: latency is then
mostly time in line.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import uvloop

from compat_tests.benchmarks.bench_results import write_results
from compat_tests.benchmarks.bench_services import CLUSTER, ELASTICMQ, HOLDFAST, SERVICES, running
from compat_tests.benchmarks.bench_wire import Endpoint
from compat_tests.benchmarks.measurement import Measurement, measure
from compat_tests.benchmarks.report import table, write_json
from compat_tests.benchmarks.scenarios import SCENARIOS
from compat_tests.facade import Credentials

_CONNECTIONS_MAX = 1000  # below the usual limit of 1024 open files
_SECONDS_MAX = 600.0
_OURS = "holdfast-fsync"


def main() -> int:
    """Run from the command line."""
    options = _options()
    with running(options.services) as endpoints:
        endpoints += _other_endpoints(options)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            measurements = runner.run(_run_all(options, endpoints))
    return 0 if _report(options, measurements) else 1


def _report(options: argparse.Namespace, measurements: list[Measurement]) -> bool:
    """Print and write the results; True when those of Holdfast were correct."""
    print(table(measurements), flush=True)
    if options.json is not None:
        settings = {name: str(value) for name, value in vars(options).items() if name != "secret"}
        write_json(options.json, settings, measurements)
    if options.out is not None:
        write_results(options.out, measurements, options.warm_up)
    wrong = [one for one in measurements if not one.correct]
    for one in wrong:
        what = f"{one.scenario}, {one.connections} connections, {one.endpoint}"
        lost = "an unknown number" if one.lost is None else one.lost
        print(f"{what}: {one.errors} errors, {lost} lost; {one.complaints}", file=sys.stderr)
    return not any(one.endpoint in (*HOLDFAST, CLUSTER) for one in wrong)


async def _run_all(options: argparse.Namespace, endpoints: list[Endpoint]) -> list[Measurement]:
    """Run every scenario on each endpoint in turn, so that noise hits all of them."""
    plan = list(_plan(options))
    for endpoint in endpoints:
        if endpoint.name in ELASTICMQ:
            await _warm_up(endpoint, plan, options.warm_up)
    measurements = []
    for name, connections in plan:
        for number in range(options.rounds):
            for endpoint in endpoints if number % 2 == 0 else reversed(endpoints):
                if endpoint.is_static and name != "send":
                    continue
                one = await measure(name, endpoint, connections, seconds=options.seconds)
                measurements.append(one)
                _show_progress(number, one)
    return measurements


def _plan(options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    for name in options.scenario:
        scenario = SCENARIOS[name]
        changed = options.connections is not None and not scenario.fixed
        for connections in options.connections if changed else scenario.connections:
            yield name, connections


async def _warm_up(endpoint: Endpoint, plan: Sequence[tuple[str, int]], seconds: float) -> None:
    """Run the whole plan until the time is up: a JVM compiles code that has run often."""
    print(f"warming up {endpoint.name} for {seconds:.0f} s", file=sys.stderr, flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, connections in plan:
            await measure(name, endpoint, connections, seconds=seconds / len(plan))


def _show_progress(number: int, one: Measurement) -> None:
    print(
        f"{one.scenario}, {one.connections} connections, round {number + 1}, {one.endpoint}: "
        f"{one.messages_per_second:,.0f} messages/s, {one.cpu_us_per_message:,.0f} us of CPU each",
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
    choices = (*SERVICES, CLUSTER)
    parser.add_argument(
        "--scenario", nargs="+", choices=names, metavar="NAME", help=" ".join(names)
    )
    parser.add_argument(
        "--services", nargs="+", choices=choices, metavar="NAME", help=" ".join(choices)
    )
    parser.add_argument("--connections", nargs="+", type=int)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured, for each run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=float, default=60.0, help="seconds, for each JVM")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="for RESULTS.md and results.svg; by default only a full comparison writes them",
    )
    other = parser.add_argument_group("another endpoint beside ours instead of the services")
    other.add_argument("--against", metavar="URL", help="plain http")
    other.add_argument("--against-pid", type=int, help="its process, for its CPU and memory")
    other.add_argument("--access-key", default="AKIDEXAMPLE")
    other.add_argument(
        "--secret",
        default="wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
        help="with an equals sign, as it may begin with a hyphen",
    )
    other.add_argument("--region", default="us-east-1")
    options = parser.parse_args()
    _check(parser, options)
    _complete(options, names)
    return options


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if not all(1 <= count <= _CONNECTIONS_MAX for count in options.connections or []):
        parser.error(f"--connections must be from 1 to {_CONNECTIONS_MAX}")
    if not 0 < options.seconds <= _SECONDS_MAX:
        parser.error(f"--seconds must be above 0 and at most {_SECONDS_MAX:g}")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.against is not None and not options.against.startswith("http://"):
        parser.error("--against must begin with http://")


def _complete(options: argparse.Namespace, names: list[str]) -> None:
    """Set the open options: everything, unless there is another endpoint."""
    parts = (options.scenario, options.services, options.connections, options.against)
    if options.out is None and parts == (None, None, None, None):
        options.out = Path(__file__).parent
    options.scenario = options.scenario or names
    options.services = options.services or ([_OURS] if options.against else list(SERVICES))


if __name__ == "__main__":
    sys.exit(main())
