"""The metrics of a host's disk: the bytes that logs and rows take, and writes that wait."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric
from typing_extensions import override

from sqs_api.gateway.metrics import Source
from storage.engines.store_options import log_folder


class StorageMetrics(Source):
    """The files of this host's shards."""

    def __init__(self, folders: Mapping[int, Path]) -> None:
        """`folders` are those of the rows, by shard."""
        self._folders = {
            (str(shard), part): folder
            for shard, rows in sorted(folders.items())
            for part, folder in (("rows", rows), ("log", log_folder(rows)))
        }
        self._bytes: dict[tuple[str, str], int] = {}

    @override
    async def read(self) -> None:
        """Files are counted in a thread."""
        self._bytes = await asyncio.to_thread(self._look)

    def _look(self) -> dict[tuple[str, str], int]:
        return {labels: bytes_in(folder) for labels, folder in self._folders.items()}

    @override
    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "holdfast_shard_stored_bytes",
            "Bytes of a shard's files: its rows with all messages, and its log.",
            labels=("shard", "part"),
        )
        for labels, size in self._bytes.items():
            family.add_metric(labels, size)
        yield family


def bytes_in(folder: Path) -> int:
    """The size of the files in a folder and below it; those that vanish meanwhile are left out."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.lstat(os.path.join(place, name)).st_size
            except FileNotFoundError:
                continue
    return size
