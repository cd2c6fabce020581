"""Records of the manager, below `manager/` of the fleet's prefix. No process watches them: hosts of
a fleet of several clusters read them, each ten seconds, and all that show or change them.

planner        the host that plans, bound to its lease, see `planner_key.py`
mode           the mode; without it, shadow
paused-from    the mode before a pause, which its end brings back; written with that pause's mode,
               else it is of an earlier one (the version before writes none)
load/HOST      a host's report, bound to its lease, see `load_records.py`
peaks          the peaks that the next planner has to know, see `peaks.py`
changes/ID     a change that was made, in the transaction that made it; kept for an hour, and as
               long as a part drains because of it or an older one of the queue is kept
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from cluster.coordination.coordination import (
    RECORDS_MAX,
    Coordination,
    Done,
    Outcome,
    Record,
    Transaction,
    Unavailable,
)
from cluster.fleet.load_records import LOADS, decode_loads
from cluster.fleet.loads import HostLoad
from cluster.fleet.peaks import KnownPeaks
from cluster.fleet.plan_table import Change
from cluster.fleet.planner_key import KEY, PlannerHolder

MANAGER = "manager/"
MODE = "mode"
PAUSED_FROM = "paused-from"
CHANGES = "changes/"
PEAKS = "peaks"


class Mode(enum.Enum):
    """The mode of the manager."""

    SHADOW = "shadow"
    """It says what it would do, and does nothing; an operator may make one of its changes."""
    ON = "on"
    """It makes its changes."""
    PAUSED = "paused"
    """It says what it would do, and nobody makes a change of its plan."""


class MadeChange(msgspec.Struct, frozen=True):
    """A change that was made, and who made it."""

    change_id: str
    at_ms: int
    by: str
    """The ARN of an operator, or `manager`."""
    change: Change
    added: tuple[int, ...] = ()
    """Numbers of the parts that were added."""
    home: str = ""
    """The queue's id from then on, if its home moved; else empty."""


class Seen(NamedTuple):
    """The records as of one moment."""

    mode: Mode = Mode.SHADOW
    mode_revision: int = 0
    holder: PlannerHolder | None = None
    made: tuple[MadeChange, ...] = ()
    """The oldest first; each names its queue by its present id."""
    loads: tuple[HostLoad, ...] = ()
    unreadable: tuple[str, ...] = ()
    peaks: KnownPeaks | None = None
    paused_from: Mode = Mode.SHADOW
    """The mode that the end of a pause brings back."""

    @property
    def unpaused(self) -> Mode:
        """The mode without the pause, if there is one."""
        return self.paused_from if self.mode is Mode.PAUSED else self.mode


def change_id_of(change: Change) -> str:
    """The id of a planned change: a queue has one change in each of its versions."""
    return f"{change.queue}.{change.version}"


class PlanRecords:
    """Reads and writes them."""

    def __init__(self, coordination: Coordination) -> None:
        """`coordination` has the records below MANAGER."""
        self._coordination = coordination

    async def read(self) -> Seen | Unavailable:
        """All of them."""
        found = await self._coordination.read_all()
        return found if isinstance(found, Unavailable) else seen_in(found.records)

    async def set_mode(self, mode: Mode, seen: Seen) -> Outcome:
        """Change the mode, if it is as it was seen."""
        changes: dict[str, bytes | None] = {MODE: msgspec.json.encode(mode)}
        if mode is Mode.PAUSED:
            changes[PAUSED_FROM] = msgspec.json.encode(seen.unpaused)
        return await self._coordination.commit(Transaction({MODE: seen.mode_revision}, changes))

    async def keep_peaks(self, known: KnownPeaks, conditions: Mapping[str, int]) -> None:
        """Write these, if it can be done now."""
        changes: dict[str, bytes | None] = {PEAKS: msgspec.json.encode(known)}
        await self._coordination.commit(Transaction(conditions, changes))

    async def forget(self, made: Iterable[MadeChange], conditions: Mapping[str, int]) -> bool:
        """Remove some of these records; False if it was not done now."""
        gone = [CHANGES + each.change_id for each in made][: RECORDS_MAX // 2]
        if not gone:
            return True
        changes = dict.fromkeys(gone)
        return isinstance(await self._coordination.commit(Transaction(conditions, changes)), Done)


def seen_in(records: Iterable[Record]) -> Seen:
    """All that these records say; those that cannot be read are named, and say nothing."""
    mode, revision = Mode.SHADOW, 0
    before = Mode.SHADOW, 0
    holder, peaks = None, None
    made: list[MadeChange] = []
    unreadable: list[str] = []
    of_loads: list[Record] = []
    for record in records:
        try:
            if record.key.startswith(LOADS):
                of_loads.append(record)
            elif record.key.startswith(CHANGES):
                made.append(msgspec.json.decode(record.value, type=MadeChange))
            elif record.key == KEY:
                holder = msgspec.json.decode(record.value, type=PlannerHolder)
            elif record.key == PEAKS:
                peaks = msgspec.json.decode(record.value, type=KnownPeaks)
            elif record.key == PAUSED_FROM:
                before = msgspec.json.decode(record.value, type=Mode), record.revision
            elif record.key == MODE:
                revision = record.revision
                mode = msgspec.json.decode(record.value, type=Mode)
        except msgspec.MsgspecError:
            unreadable.append(record.key)
            if record.key == MODE:
                mode = Mode.PAUSED
    loads, silent = decode_loads(of_loads)
    made.sort(key=lambda each: (each.at_ms, each.change_id))
    present = tuple(_by_present_ids(made))
    unheard = (*unreadable, *silent)
    paused_from = before[0] if before[1] == revision else Mode.SHADOW
    return Seen(mode, revision, holder, present, tuple(loads), unheard, peaks, paused_from)


def _by_present_ids(made: Sequence[MadeChange]) -> Iterator[MadeChange]:
    """The changes of a queue whose home moved later are changes of the queue under its new id."""
    moved = {each.change.queue: each.home for each in made if each.home}
    for each in made:
        queue = each.change.queue
        while queue in moved:
            queue = moved[queue]
        if queue != each.change.queue:
            change = msgspec.structs.replace(each.change, queue=queue)
            each = msgspec.structs.replace(each, change=change)
        yield each
