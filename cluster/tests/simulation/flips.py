"""Flipped bits in the log: a start must report unreadable Entries, and serve nothing wrong."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from zlib import crc32

from cluster.tests.simulation.rows import applied_position
from cluster.tests.simulation.worker import Machine
from storage.engines.durable import log_folder
from storage.log import Entry, NoteDamaged, read_answered, read_log
from storage.log.entry import read_entry
from storage.log.scan import read_segment


def flip_a_bit(machine: Machine, random: Random) -> bool:
    """Flip one in a synced Entry that the rows lack; False if there is none."""
    shard = machine.shards[0]
    folder = log_folder(shard.folder)
    answered = None
    with suppress(NoteDamaged):  # its first write may have been short
        answered = read_answered(machine.disk, folder)
    reading = read_log(machine.disk, folder, applied_position(shard.files.rows), answered)
    records: list[tuple[str, int, int]] = []
    for run in reading.runs:
        data = read_segment(machine.disk, folder, run.segment.name)
        offset = run.begin
        while offset < run.end:
            entry = read_entry(data, offset, crc32(reading.log_id))
            assert isinstance(entry, Entry)
            if reading.applied.index < entry.index <= reading.proven:
                records.append((run.segment.name, offset, entry.size))
            offset += entry.size
    if not records:
        return False
    name, offset, size = random.choice(records)
    machine.disk.flip(folder / name, offset + random.randrange(size), random.randrange(8))
    return True
