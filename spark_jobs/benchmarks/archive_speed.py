"""The archive job compared with plain Spark on the same segments.

    python -m spark_jobs.benchmarks.archive_speed --rows 1000000 [--standalone]

Plain Spark, the floor, reads the segments and writes them by account, queue and day; it verifies
nothing and creates no table. The two alternate in one session. The claim is that archiving takes at
most twice as long.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from spark_jobs.archive.archive_job import archive
from spark_jobs.archive.runs import Run
from spark_jobs.benchmarks.session import benchmark_session
from storage.lake.archive_schema import (
    CHECKSUM_MODULUS,
    FOOTER_KEY,
    SEGMENT,
    SEGMENTS,
    arrow_schema,
    row_checksum,
    segment_folder,
    segment_name,
)
from storage.lake.table import Lake

SEGMENT_ROWS = 60_000
QUEUES = 6
DAYS = 3
BODY_BYTES = 1000


def bodies(count: int, chance: random.Random) -> list[str]:
    """JSON texts of about a kilobyte that compress to about a third, as real messages do."""
    words = [f"{chance.getrandbits(20):x}" for _ in range(5000)]
    found = []
    for number in range(count):
        text = " ".join(chance.choices(words, k=140))
        found.append(f'{{"order":{number},"id":"{chance.getrandbits(128):032x}","note":"{text}"}}')
    return [body[:BODY_BYTES] for body in found]


def write_lake(lake: Lake, rows: int) -> int:
    """Write segments with this many messages; the bytes of their files."""
    chance = random.Random(5)
    schema = arrow_schema(SEGMENT)
    begun = datetime(2026, 11, 20, tzinfo=UTC)
    size = 0
    for batch in range(1, -(-rows // SEGMENT_ROWS) + 1):
        first = (batch - 1) * SEGMENT_ROWS
        count = min(SEGMENT_ROWS, rows - first)
        texts = bodies(count, chance)
        ids = [f"{chance.getrandbits(128):032x}" for _ in range(count)]
        sums = [row_checksum(ids[i], texts[i].encode(), b"") for i in range(count)]
        sent = [begun + timedelta(days=DAYS) * chance.random() for _ in range(count)]
        columns: dict[str, Any] = {name: [None] * count for name in schema.names}
        columns |= {
            "source": ["0123456789abcdef"] * count,
            "shard": [0] * count,
            "batch": [batch] * count,
            "position": list(range(first + 1, first + count + 1)),
            "account": ["000000000000"] * count,
            "region": ["us-east-1"] * count,
            "queue": [f"queue-{chance.randrange(QUEUES)}" for _ in range(count)],
            "message_id": ids,
            "reason": ["expired"] * count,
            "sent_at": sent,
            "removed_at": [at + timedelta(days=4) for at in sent],
            "receive_count": [0] * count,
            "size": list(map(len, texts)),
            "body": texts,
            "md5_of_body": [hashlib.md5(text.encode()).hexdigest() for text in texts],
            "sender_id": ["000000000000"] * count,
            "checksum": sums,
        }
        footer = {
            "format": 1,
            "source": "0123456789abcdef",
            "shard": 0,
            "batch": batch,
            "count": count,
            "checksum": sum(sums) % CHECKSUM_MODULUS,
            "bytes": sum(map(len, texts)),
        }
        table = pa.table(columns, schema).replace_schema_metadata(
            {FOOTER_KEY: json.dumps(footer).encode()}
        )
        path = f"{segment_folder('0123456789abcdef', 0)}/{segment_name(batch)}"
        with lake.draft(path) as draft:
            pq.write_table(table, draft, compression="zstd", row_group_size=16_384)
            size += draft.stat().st_size
    return size


def floor(session: SparkSession, lake: Lake, target: Path) -> None:
    """Plain Spark with the same compression."""
    (
        session.read.option("recursiveFileLookup", "true")
        .parquet(lake.uri(SEGMENTS))
        .withColumn("day", f.to_date("sent_at"))
        .write.partitionBy("account", "queue", "day")
        .option("compression", "zstd")
        .parquet(str(target))
    )


def ours(session: SparkSession, lake: Lake, rows: int) -> None:
    """The job from its plan to its commit."""
    with Run(lake, "archive") as run:
        archived = archive(lake, run, lambda: nullcontext(session), {}, print)
    assert archived.rows == rows, archived


def main() -> None:
    """Write the segments, measure alternately, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--standalone", action="store_true", help="a cluster on this machine")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-archive-") as folder:
        lake = Lake(folder)
        size = write_lake(lake, options.rows)
        print(f"{options.rows:,} messages, {size / 1e6:,.0f} MB of segments")
        took: dict[str, list[float]] = {"floor": [], "archive": []}
        with benchmark_session(is_standalone=options.standalone) as session:
            target = Path(folder, "floor")
            turns: dict[str, Callable[[], None]] = {
                "floor": partial(floor, session, lake, target),
                "archive": partial(ours, session, lake, options.rows),
            }
            for _ in range(options.rounds):
                for name, run in turns.items():
                    begun = time.perf_counter()
                    run()
                    took[name].append(time.perf_counter() - begun)
                    print(f"{name}: {took[name][-1]:.1f} s")
                for written in (target, Path(folder, "archive")):
                    files = list(written.rglob("*.parquet"))
                    total = sum(path.stat().st_size for path in files)
                    print(f"{written.name}: {len(files)} files, {total / 1e6:,.0f} MB")
                    shutil.rmtree(written)
    best = {name: min(seconds) for name, seconds in took.items()}
    rate = options.rows / best["archive"]
    ratio = best["archive"] / best["floor"]
    print(f"archive: {rate:,.0f} messages/s, {ratio:.2f} times the floor's time")


if __name__ == "__main__":
    main()
