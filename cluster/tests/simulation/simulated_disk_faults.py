"""Damage to a minority of the hosts' disks, and hosts that stay away for long.

At most one host at a time lacks something that it acknowledged: the next is damaged once all others
are voters over sound rows and logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from msgspec.msgpack import decode

from cluster.peers.peer_settings import CheckpointSettings
from cluster.tests.replication.shard_hosts import ShardHost
from cluster.tests.replication.shard_process import Checkpointing
from cluster.tests.simulation.flips import acknowledged_records, last_index, unneeded_pages
from cluster.tests.simulation.simulated_cluster_faults import ShardFaults
from cluster.tests.simulation.simulated_rows import applied_position
from storage.copies.scrub import ScrubTimes
from storage.engines.store_options import log_folder
from storage.log import Promise
from storage.log.promise import PROMISE_FILE, read_promises
from storage.tests.simulated_disk import PAGE_BYTES
from visibility.rows.row_keys import APPLIED_KEY

_PAUSES_S = (0.5, 2.0, 5.0)
_SHARE = 0.5
"""Of the seeds."""


class DiskShape(NamedTuple):
    """The disk faults of a run."""

    often: tuple[str, ...] = ()
    """Faults that come more often than others."""
    has_bad_pages: bool = False
    """Pages of the log become unreadable."""


def drawn_disks(seed: int) -> DiskShape | None:
    """The disk faults of this seed; None in half of them."""
    if Random(f"disks {seed}").random() >= _SHARE:
        return None
    return DiskShape(has_bad_pages=Random(f"bad pages {seed}").random() < _SHARE)


class _Flip(NamedTuple):
    """A flipped bit or a bad page in the log."""

    replica_id: str
    entry: int
    """The index of the last Entry that may be lost."""
    page: tuple[Path, int] | None = None
    """The bad page, which is sound once it was written to."""


class DiskFaults:
    """Causes one fault after the other."""

    def __init__(self, faults: ShardFaults, shape: DiskShape, random: Random) -> None:
        """`random` is theirs alone."""
        self._random = random
        self.cluster = cluster = faults.shards
        self._faults = faults
        self._flips: dict[str, _Flip] = {}
        """By host."""
        kinds: dict[str, Callable[[ShardHost], None]] = {
            "new disk": self._replace,
            "flipped bit": self._flip,
            "damaged rows": self._damage_rows,
            "rows of another": self._take_rows,
            "long absence": self._stay_away,
            "power cut in a switch": self._cut_in_a_switch,
            "wrong reads": self._read_wrong,
            "damage beside a laggard": self._damage_beside_a_laggard,
        }
        if shape.has_bad_pages:
            kinds["bad page"] = self._spoil
        rare = {"damaged rows and wrong views": self._damage_and_view_wrong}
        """Only of runs that name them."""
        self._kinds = list(kinds.values()) + [(kinds | rare)[name] for name in shape.often] * 14
        self._pause_s = random.choice(_PAUSES_S)
        cluster.checkpoints = Checkpointing(
            CheckpointSettings(
                chunk_bytes=random.choice((2_000, 20_000)),
                chunks_max=random.choice((1, 4)),
                silence_s=random.choice((2.0, 10.0)),
                shared_s=random.choice((0.0, 30.0)),
                make_s=20.0,
                keep_s=2.0,
                retry_max_s=2.0,
            ),
            ScrubTimes(random.choice((1.0, 5.0)), random.choice((3.0, 10.0))),
        )
        cluster.timing = cluster.timing._replace(
            retained_bytes=random.choice((1, 1, 20_000, 256 << 20))
        )
        if random.random() < 0.7:  # the log does not reach back far
            cluster.options = cluster.options._replace(
                segment_bytes=20 << 10, flush_bytes=5_000, flush_rows=random.choice((20, 200))
            )

    async def run(self, seconds: float) -> None:
        """Damage disks for a time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            await asyncio.sleep(self._random.uniform(0, self._pause_s))
            host = self._random.choice(list(self.cluster.hosts.values()))
            self._random.choice(self._kinds)(host)
            self._look_for_no_good_copy()

    def _look_for_no_good_copy(self) -> None:
        """A minority is damaged: no host may find that all are."""
        for host in self.cluster.hosts.values():
            store = host.process.store if host.process is not None else None
            text = f"{host.name} finds no good copy, and there are some"
            violations = self.cluster.violations
            if store is not None and store.damaged.has_no_good_copy and text not in violations:
                violations.append(text)

    # -- what may be lost --------------------------------------------------------------------------

    def has_healed(self) -> bool:
        """True if all hosts are voters, with sound rows and logs; one that stopped late starts."""
        for host in self.cluster.hosts.values():
            if not host.is_up:
                host.start()
        return self._are_voters() and all(map(self._is_whole, self.cluster.hosts.values()))

    def _are_voters(self) -> bool:
        record = self.cluster.coordination.state().record
        ids = set(map(_id_of, self.cluster.hosts.values()))
        return record is not None and not record.old_voters and set(record.voters) == ids

    def _is_whole(self, host: ShardHost) -> bool:
        replica, flip = host.replica, self._flips.get(host.name)
        if host.files.damaged or (replica is not None and replica.damage):
            return False
        if flip is None or flip.replica_id != _id_of(host):
            return True
        if flip.page is not None:
            file, page = flip.page
            if page not in host.disk.file(file).unreadable_pages:
                return True
        return applied_position(host.files.rows).index >= flip.entry

    def may_lose(self, host: ShardHost) -> bool:
        """True if the other voters are enough, whatever this host loses."""
        others = [each for each in self.cluster.hosts.values() if each is not host]
        return self._are_voters() and all(map(self._is_whole, others))

    # -- faults ------------------------------------------------------------------------------------

    def _note(self, text: str) -> None:
        self.cluster.note(text)

    def _replace(self, host: ShardHost) -> None:
        if self.may_lose(host):
            host.crash(is_power_loss=True)
            host.replace_disk(self._random)
            self._flips.pop(host.name, None)
            self._note(f"{host.name} gets a new disk")

    def _flip(self, host: ShardHost) -> None:
        if self.may_lose(host):
            if self._random.random() < 0.6:
                host.crash(is_power_loss=self._random.random() < 0.7)
            self.flip_a_bit(host)

    def flip_a_bit(self, host: ShardHost) -> None:
        """In an Entry that the host is known to have acknowledged, and its rows may lack."""
        folder = log_folder(host.folder)
        records = acknowledged_records(host.disk, folder, applied_position(host.files.rows))
        if records:
            name, offset, size, index = self._random.choice(records)
            bit = self._random.randrange(8 * (size - 8))  # not in the padding
            host.disk.flip(folder / name, offset + bit // 8, bit % 8)
            self._flips[host.name] = _Flip(_id_of(host), index)
            self._note(f"a bit of Entry {index} of {host.name} flipped")

    def _spoil(self, host: ShardHost) -> None:
        """A page of the log cannot be read from now on, until it is written."""
        if not self.may_lose(host):
            return
        if self._random.random() < 0.6:
            host.crash(is_power_loss=self._random.random() < 0.7)
        folder, applied = log_folder(host.folder), applied_position(host.files.rows)
        last = last_index(host.disk, folder, applied)
        records = acknowledged_records(host.disk, folder, applied)
        pages = unneeded_pages(host.disk, folder, applied)
        if records and self._random.random() < 0.6:
            name, offset, size, _ = self._random.choice(records)
            page = self._random.randint(offset // PAGE_BYTES, (offset + size - 1) // PAGE_BYTES)
            self._flips[host.name] = _Flip(_id_of(host), last, (folder / name, page))
        elif pages:
            name, page = self._random.choice(pages)
        else:
            return
        host.disk.file(folder / name).unreadable_pages.add(page)
        self._note(f"page {page} of {name} of {host.name} cannot be read")

    def _damage_beside_a_laggard(self, host: ShardHost) -> None:
        """One of two hosts that have the latest Entries loses them; the other is cut off then."""
        leader = self.cluster.leading()
        if leader is None or leader is host:
            return
        (damaged,) = set(self.cluster.hosts.values()) - {leader, host}
        self._faults.cut_off_wholly(host)
        delay_s = self._random.uniform(1, 2.5)
        asyncio.get_running_loop().call_later(delay_s, self._damage_and_swap, leader, damaged)

    def _damage_and_swap(self, leader: ShardHost, damaged: ShardHost) -> None:
        if self.cluster.is_ending or not self.may_lose(damaged):
            return
        self.cluster.network.cut.clear()
        self.cluster.coordination.unreachable.clear()
        self._faults.cut_off_wholly(leader)
        if self._random.random() < 0.5:
            self._replace(damaged)
        else:
            damaged.crash(is_power_loss=True)
            self.flip_a_bit(damaged)
        damaged.start()

    def _damage_rows(self, host: ShardHost) -> None:
        keys = sorted(host.files.rows.keys() - {APPLIED_KEY})
        if not keys or not self.may_lose(host):
            return
        for key in self._random.sample(keys, min(len(keys), self._random.choice((1, 3)))):
            host.files.damaged.add(key)
            if host.process is not None and host.process.rows is not None:
                host.process.rows.damage(key)
        self._note(f"rows of {host.name} are damaged")

    def _take_rows(self, host: ShardHost) -> None:
        """A host replaces its rows by those of another, whatever its log holds."""
        process = host.process
        if process is not None and process.store is not None and self.may_lose(host):
            self._note(f"{host.name} replaces its rows")
            process.enter(partial(process.store.replace_rows, "as if they were damaged"))

    def _stay_away(self, host: ShardHost) -> None:
        if host.is_up:
            host.crash(is_power_loss=self._random.random() < 0.5)
            self._faults.keep_down(host, self._random.uniform(2, 12))

    def _cut_in_a_switch(self, host: ShardHost) -> None:
        host.folders.calls_until_cut = self._random.randrange(16)

    def _read_wrong(self, host: ShardHost) -> None:
        host.folders.wrong_reads = self._random.choice((1, 2, 20))

    def _damage_and_view_wrong(self, host: ShardHost) -> None:
        """Its disk gives wrong bits of what it fetched, too."""
        if self.may_lose(host):
            host.folders.wrong_views = self._random.choice((2, 4, 6))
            self._damage_rows(host)


def _id_of(host: ShardHost) -> str:
    """The replica's id on the disk, empty if there is none."""
    folder = log_folder(host.folder)
    with suppress(KeyError):
        slots = read_promises(bytes(host.disk.file(folder / PROMISE_FILE).content))
        return "" if slots.payload is None else decode(slots.payload, type=Promise).replica_id
    return ""
