"""Flipped bits in the log: a start must report unreadable Entries, and serve nothing wrong."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple
from zlib import crc32

from cluster.tests.simulation.simulated_rows import applied_position
from cluster.tests.simulation.simulated_worker import Machine
from storage.engines.store_options import log_folder
from storage.log import Entry, NoteDamaged, Position, Reading, read_answered, read_log
from storage.log.entry import read_entry
from storage.log.scan import read_segment
from storage.tests.simulated_disk import PAGE_BYTES, SimulatedDisk


class Record(NamedTuple):
    """An Entry in a file of the log."""

    segment: str
    offset: int
    size: int
    number: int
    """Of the Entry."""


def flip_a_bit(machine: Machine, random: Random) -> bool:
    """Flip one in a synced Entry that the rows lack; False if there is none."""
    shard = machine.shards[0]
    folder = log_folder(shard.folder)
    records = acknowledged_records(machine.disk, folder, applied_position(shard.files.rows))
    if not records:
        return False
    record = random.choice(records)
    offset = record.offset + random.randrange(record.size)
    machine.disk.flip(folder / record.segment, offset, random.randrange(8))
    return True


def acknowledged_records(disk: SimulatedDisk, folder: Path, applied: Position) -> list[Record]:
    """The Entries behind `applied` that a start knows to have been synced."""
    reading = _read(disk, folder, applied)
    records: list[Record] = []
    for run in reading.runs:
        data = read_segment(disk, folder, run.segment.name)
        offset = run.begin
        while offset < run.end:
            entry = read_entry(data, offset, crc32(reading.log_id))
            assert isinstance(entry, Entry)
            if reading.applied.index < entry.index <= reading.proven:
                records.append(Record(run.segment.name, offset, entry.size, entry.index))
            offset += entry.size
    return records


def last_index(disk: SimulatedDisk, folder: Path, applied: Position) -> int:
    """Of the last Entry that a start would find, or know of."""
    return _read(disk, folder, applied).end.index


def unneeded_pages(disk: SimulatedDisk, folder: Path, applied: Position) -> list[tuple[str, int]]:
    """Segments and pages, without headers, on which there is no Entry that the rows lack."""
    reading = _read(disk, folder, applied)
    ends: dict[str, int] = {}
    for run in reading.runs:
        ends[run.segment.name] = max(ends.get(run.segment.name, 0), run.end)
    return [
        (found.name, page)
        for found in reading.segments
        for page in range(
            max(1, -(-ends.get(found.name, 0) // PAGE_BYTES)), found.size // PAGE_BYTES
        )
    ]


def _read(disk: SimulatedDisk, folder: Path, applied: Position) -> Reading:
    answered = None
    with suppress(NoteDamaged):  # its first write may have been short
        answered = read_answered(disk, folder)
    return read_log(disk, folder, applied, answered)
