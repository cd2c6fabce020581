"""The job queue-age on ten million rows of snapshots, compared with plain Spark that reads them.

    python -m spark_jobs.benchmarks.queue_age_speed [--rows 10000000] [--queues 500] [--rounds 3]
        [--standalone]

Plain Spark, the floor, reads the same files and writes three numbers by queue and hour. The job
lists the files, counts, computes, and commits to a new Delta table. The two alternate in one
session after a warm-up round; the best time of each counts. The files have about 75 MB, from four
shards with a snapshot every five minutes.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.ages.queue_age import HOURLY, commit, compute, plan
from spark_jobs.benchmarks.session import benchmark_session
from spark_jobs.lib.delta import open_table
from storage.lake.archive_schema import FLOW, FLOWS, QUEUE_AGE, SNAPSHOT, SNAPSHOTS, arrow_schema
from storage.lake.table import Lake

_SHARDS = 4
_SNAPSHOTS = 24
_BEGINNING = datetime(2026, 11, 20, 8, tzinfo=UTC)
_REPEATED = ["taken_at", "account", "region", "queue", "state", "receivable", "receive_count"]


def fill(lake: Lake, rows: int, queues: int) -> None:
    """Write snapshots and flows. Ages are log-normal, and few queues have most messages."""
    random = np.random.default_rng(1)
    weights = random.pareto(1.2, queues) + 0.2
    names = np.array([f"orders-{number:04d}" for number in range(queues)])
    for number in range(1, _SNAPSHOTS + 1):
        taken_at = _BEGINNING + timedelta(minutes=5 * number)
        for shard in range(_SHARDS):
            own = np.arange(shard, queues, _SHARDS)
            shares = weights[own] / weights[own].sum()
            counts = random.multinomial(rows // _SNAPSHOTS // _SHARDS, shares)
            waiting = _waiting(random, np.repeat(names[own], counts), taken_at)
            _write(lake, SNAPSHOTS, shard, taken_at, waiting)
            _write(lake, FLOWS, shard, taken_at, _moved(names[own], counts, taken_at))


def _waiting(random: np.random.Generator, names: np.ndarray, taken_at: datetime) -> pa.Table:
    count = len(names)
    taken_ms = int(taken_at.timestamp() * 1000)
    ages_ms = np.minimum(random.lognormal(11, 2.2, count), 1.2e9).astype(np.int64)
    receives = np.minimum(random.geometric(0.6, count) - 1, 30)
    in_flight = (receives > 0) & (random.random(count) < 0.3)
    columns = {
        "taken_at": np.full(count, taken_ms * 1000),
        "account": np.full(count, "000000000001"),
        "region": np.full(count, "us-east-1"),
        "queue": names,
        "state": np.where(in_flight, "in_flight", "visible"),
        "receivable": ~in_flight,
        "sent_at": (taken_ms - ages_ms) * 1000,
        "receive_count": receives,
        "size": random.integers(200, 3000, count),
    }
    return pa.table(columns).cast(arrow_schema(SNAPSHOT))


def _moved(names: np.ndarray, counts: np.ndarray, until_at: datetime) -> pa.Table:
    flows = [
        dict.fromkeys((name for name, kind in FLOW.items() if kind == "int64"), 0)
        | {
            "from_at": until_at - timedelta(minutes=5),
            "until_at": until_at,
            "account": "000000000001",
            "region": "us-east-1",
            "queue": str(name),
            "visible": int(count),
            "sent": 1000,
            "deleted": 990,
            "time_in_queue_buckets": list(range(80, 120)),
            "time_in_queue_counts": [25] * 40,
        }
        for name, count in zip(names, counts, strict=True)
    ]
    return pa.Table.from_pylist(flows, arrow_schema(FLOW))


def _write(lake: Lake, kind: str, shard: int, instant: datetime, rows: pa.Table) -> None:
    name = f"{instant.date().isoformat()}/{int(instant.timestamp() * 1000)}.parquet"
    with lake.draft(f"{kind}/benchmark/shard-{shard}/{name}") as draft:
        pq.write_table(rows, draft, compression="zstd", use_dictionary=_REPEATED)


def floor(session: SparkSession, lake: Lake) -> None:
    """Plain Spark."""
    files = [lake.path(file.path) for file in lake.list(SNAPSHOTS)]
    rows = session.read.schema(from_arrow_schema(arrow_schema(SNAPSHOT))).parquet(*files)
    hour = f.expr("unix_micros(taken_at) div 3600000000").alias("hour")  # cheaper than date_trunc
    groups = rows.groupBy("account", "queue", hour)
    sums = groups.agg(f.count("*"), f.max("sent_at"), f.sum("size"))
    sums.write.mode("overwrite").parquet(lake.path("floor"))


def job(session: SparkSession, lake: Lake) -> None:
    """The job without its report."""
    shutil.rmtree(lake.path(QUEUE_AGE), ignore_errors=True)
    table = open_table(lake, QUEUE_AGE, HOURLY)
    hours = plan(lake, table)
    commit(table, hours, compute(session, lake, hours))


def _seconds(
    work: Callable[[SparkSession, Lake], None], session: SparkSession, lake: Lake
) -> float:
    begun_s = time.perf_counter()
    work(session, lake)
    return time.perf_counter() - begun_s


@click.command()
@click.option("--rows", default=10_000_000, show_default=True)
@click.option("--queues", default=500, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--standalone", is_flag=True, help="On a cluster on this machine.")
def main(rows: int, queues: int, rounds: int, standalone: bool) -> None:
    """Measure, and print the ratio."""
    with tempfile.TemporaryDirectory(prefix="queue-age-") as folder:
        lake = Lake(folder)
        fill(lake, rows, queues)
        size = sum(file.size for file in lake.list(SNAPSHOTS))
        click.echo(f"{rows:,} rows of {queues:,} queues, {size / 1e6:,.0f} MB", err=True)
        with benchmark_session(is_standalone=standalone, local="local[2]") as session:
            best: dict[str, float] = {}
            for number in range(rounds + 1):
                for work in (floor, job):
                    seconds = _seconds(work, session, lake)
                    label = f"round {number}" if number else "warm-up"
                    click.echo(f"{label}: {work.__name__} {seconds:.2f} s", err=True)
                    if number:
                        best[work.__name__] = min(seconds, best.get(work.__name__, seconds))
    ratio = best["job"] / best["floor"]
    click.echo(
        f"floor {best['floor']:.2f} s, queue-age {best['job']:.2f} s: {ratio:.2f} times the floor, "
        f"{rows / best['job'] / 1e6:.1f} million rows a second"
    )


if __name__ == "__main__":
    main()
