"""RESULTS.md: one table of all services, and the machine that was used."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from textwrap import fill

from compat_tests.benchmarks import elasticmq, goaws
from compat_tests.benchmarks.bench_services import ELASTICMQ
from compat_tests.benchmarks.chart import draw
from compat_tests.benchmarks.measurement import Measurement
from compat_tests.benchmarks.report import CPU, P50, P99, RATE, Group, group, paired, written
from compat_tests.benchmarks.scenarios import SCENARIOS

_TABLE = "RESULTS.md"
_CHART = "results.svg"
_TEXT = """\
# Holdfast beside other services

![Processor time of the server for each message]({chart})

{origin}

- `holdfast-fsync` checks signatures, encrypts what it stores, and answers once that is on the disk;
  `os` and `memory` are its other durabilities; `-open` takes requests without a signature.
- `holdfast-fsync-python` is `holdfast-fsync` without the native module.
- `goaws` keeps messages in memory, checks no signatures and speaks the query protocol only, the
  others are asked in JSON. `granian-static` and `uvicorn-static` are no queues: they give each
  request one fixed answer, as long as that to a send.
- `elasticmq` keeps messages in memory, `elasticmq-h2` in its database; the JVM of each was warmed
  up under load for {warm_up:.0f} s. They and moto check no signatures.
- CPU is the server's for each message, user and system. A message counts where it is sent, or
  where it is deleted if the work ends with that. Latency is that of the whole work, for long polls
  that from the send of a message to its arrival.
- The ratio is the CPU of `{first}` divided by this service's in the same round: the
  median, the least and the greatest, and in how many rounds it was lower. `holdfast-fsync-again` is
  the same service once more: how far its ratios are from 1 is the noise of the machine.

| work | connections | service | CPU, µs | messages/s | p50, ms | p99, ms | ratio | range | lower |
|---|--:|---|--:|--:|--:|--:|--:|--:|--:|
{rows}

{faults}
"""

_ORIGIN = """\
Written by `make bench` on {day}: {rounds} rounds of {seconds:g} s for each line, the services in
turn, medians; {cores} cores, which the services share with the client; {versions}. Judge by the
ratios: absolute figures depend on the machine and on what else it does."""
_COLUMNS = 100


def write_results(folder: Path, measurements: Sequence[Measurement], warm_up: float) -> None:
    """Write table and chart."""
    groups = group(measurements)
    first = groups[0].endpoint
    baseline = {one[:2]: one for one in groups if one.endpoint == first}
    origin = _ORIGIN.format(
        day=datetime.now(UTC).date(),
        rounds=len(groups[0].runs),
        seconds=round(measurements[0].seconds, 1),
        cores=os.cpu_count(),
        versions=_versions({one.endpoint for one in groups}),
    )
    text = _TEXT.format(
        chart=_CHART,
        origin=fill(origin, _COLUMNS, break_on_hyphens=False),
        warm_up=warm_up,
        first=first,
        rows="\n".join(_row(one, baseline[one[:2]]) for one in groups),
        faults=_faults(groups),
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _TABLE).write_text(text)
    (folder / _CHART).write_text(draw(groups))


def _row(one: Group, baseline: Group) -> str:
    ratio = paired(baseline, one, CPU)
    same = one is baseline
    cells = (
        SCENARIOS[one.scenario].title,
        str(one.connections),
        one.endpoint,
        *(column.written(one.runs) for column in (CPU, RATE, P50, P99)),
        "" if same else written(ratio.median, 2),
        "" if same else f"{written(ratio.least, 2)}, {written(ratio.greatest, 2)}",
        "" if same else f"{ratio.lower} of {ratio.rounds}",
    )
    return f"| {' | '.join(cells)} |"


def _faults(groups: Sequence[Group]) -> str:
    """The failures: a service that refuses calls or loses messages may look fast."""
    wrong = []
    for one in groups:
        errors = sum(run.errors for run in one.runs)
        unclear = sum(run.lost != 0 for run in one.runs)
        if errors or unclear:
            wrong.append(
                f"- {one.endpoint}, {SCENARIOS[one.scenario].title}, {one.connections} connections:"
                f" {errors} calls failed; messages lost or not accounted for in {unclear} rounds."
            )
    return "\n".join(wrong) or "No call failed, and every acknowledged message was received."


def _versions(services: set[str]) -> str:
    said = [f"Python {sys.version.split()[0]}"]
    if services & set(ELASTICMQ):
        java = subprocess.run([elasticmq.java(), "-version"], capture_output=True, text=True)
        said += [f"ElasticMQ {elasticmq.version()} on {java.stderr.splitlines()[0]}"]
    else:
        said += ["ElasticMQ left out"]
    if "goaws" in services:
        said += [f"goaws {goaws.VERSION}"]
    return ", ".join([*said, f"moto {version('moto')}"])
