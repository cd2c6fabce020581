"""A watch of etcd that goes on through lost connections, elections and compactions.

It stays on one member until that ends the stream or falls silent. A silent stream is tested with a
write, which it must report soon: a member that is cut off keeps a watch open without a word. So is
one that does not report a write of which this process knows. Where etcd no longer has the changes
that were missed, all records are read and the difference is reported.

A stream begins with what the last one ended with, so that an etcd that was restored is noticed
although it got as far again: from the latest write of a writer's key on, whose value nobody writes
twice, all events must be the same (`_Proof`).
"""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from itertools import groupby

import structlog

from cluster.coordination.coordination import Change, KeptSnapshot, OnChange, Snapshot, Unavailable
from cluster.coordination.etcd_client import EtcdClient, Refused
from cluster.coordination.etcd_messages import Event, Watch, WatchAnswer, WatchFrom, prefix_end
from cluster.coordination.etcd_wire import NoAnswer

_PAUSE_S = 0.1
"""Pause before a watch begins anew; doubled as long as that fails."""
_PAUSE_S_MAX = 0.5
_PROOF_MAX = 1_000
"""Revisions of a proof; without one an etcd that got as far again is not noticed."""
_UNTOLD = -1
"""In place of the revision of a record that the listener did not take."""
_REPORTED_S = 0.5
"""Time in which a stream that says nothing else reports a write. Beginning anew costs little."""


_Told = tuple[str, bytes, bytes]
"""Type, key and value of an event."""


class LostPlace(Exception):
    """etcd cannot say what changed since; a read can."""


class _OnlyKept(LostPlace):
    """The stream begins with records that this process kept while etcd was away."""


class Restored(LostPlace):
    """Revisions do not mean what they did."""


class _Proof:
    """The events since the latest write that is like no other, by revision. Who has them has all
    that came before, too."""

    def __init__(self, is_unlike_others: Callable[[Event], bool]) -> None:
        self._is_unlike_others = is_unlike_others
        self._known: list[tuple[int, list[_Told]]] = []
        self._awaited: list[tuple[int, list[_Told]]] = []
        """Those that the present stream must repeat, in reverse."""

    def forget(self) -> None:
        self._known = []

    def begin(self, after: int) -> int:
        """The revision from which the next stream begins; the last one ended with `after`."""
        self._awaited = self._known[::-1]
        return self._known[0][0] if self._known else after + 1

    def check(self, revision: int, events: Sequence[Event], *, is_new: bool) -> None:
        """Raises Restored if these are not the events that must come."""
        told = [(each.type, each.kv.key, each.kv.value) for each in events]
        if is_new:
            if self._awaited:
                raise Restored("etcd was restored, and has got as far again")
            is_proof = any(map(self._is_unlike_others, events))
            if is_proof or len(self._known) >= _PROOF_MAX:
                self._known = []
            if is_proof or self._known:
                self._known.append((revision, told))
        elif not self._awaited or self._awaited.pop() != (revision, told):
            raise Restored("etcd was restored, and others wrote what came then")


class EtcdWatch:
    """One watch of all keys below a prefix. `key_of` gives the name of a record, None for keys that
    are none."""

    def __init__(
        self,
        client: EtcdClient,
        prefix: bytes,
        *,
        key_of: Callable[[bytes], str | None],
        read_all: Callable[[], Awaitable[Snapshot | Unavailable]],
        touch: Callable[[], Awaitable[int]],
        silence_s: float,
    ) -> None:
        """`touch` writes a key below the prefix, returns the revision of that, and raises Refused
        or NoAnswer."""
        self._client = client
        self._prefix = prefix
        self._key_of = key_of
        self._read_all = read_all
        self._touch = touch
        self._silence_s = silence_s
        self._revision = 0
        self._expected = 0
        """The latest write that the stream must report."""
        self._expected_at_s = 0.0
        """When it was behind such a write first."""
        self._is_doubtful = False
        """True if the stream is to be tested now."""
        self._doubt: asyncio.Future[None] | None = None
        """Done as soon as more is expected of the stream."""
        self._heard_s = 0.0
        """When the stream last said something, on the loop's clock."""
        self._history = 0
        self._pause_s = _PAUSE_S
        self._proof = _Proof(self._is_writers)
        self._known: dict[str, int] = {}
        """Revisions of all records as they were reported."""
        self._kept: dict[str, bytes] | None = None
        """Values of the records of a `KeptSnapshot`, until etcd was compared with them."""
        self._log = structlog.get_logger("etcd")

    async def run(self, after: Snapshot, on_change: OnChange) -> None:
        """Report changes until cancelled."""
        self._revision = after.revision
        self._known = {record.key: record.revision for record in after.records}
        if isinstance(after, KeptSnapshot):
            self._kept = {record.key: record.value for record in after.records}
        self._history = self._client.history
        try:
            while True:
                await self._run_once(on_change)
        finally:
            self._client.outage.ended(self)

    async def _run_once(self, on_change: OnChange) -> None:
        """Report the changes of one stream, and prepare for the next."""
        try:
            async with aclosing(self._changes()) as changes:
                async for change in changes:
                    if not self._report(change, on_change):
                        raise LostPlace("a change was not taken")
        except LostPlace as error:
            if not isinstance(error, _OnlyKept):
                self._log.warning("watch_lost_its_place", reason=str(error))
            missed = await self._difference(error)
            if missed is not None:
                self._report(missed, on_change)
        except (NoAnswer, Refused) as error:
            self._client.outage.failed(self, str(error))
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, _PAUSE_S_MAX)

    def expect(self, revision: int) -> None:
        """A write of this revision was made below the prefix."""
        if self._expected <= self._revision < revision:
            self._expected_at_s = asyncio.get_running_loop().time()
            self._look()
        self._expected = max(self._expected, revision)

    def test(self) -> None:
        """Test the stream now: its member may be cut off."""
        self._is_doubtful = True
        self._look()

    def _look(self) -> None:
        if self._doubt is not None and not self._doubt.done():
            self._doubt.set_result(None)

    def _report(self, change: Change, on_change: OnChange) -> bool:
        """False if the listener has a bug; the next difference has these records again."""
        try:
            on_change(change)
        except Exception:
            self._log.exception("change_not_taken", revision=change.revision)
            self._known |= dict.fromkeys(change.records, _UNTOLD)
            return False
        return True

    # -- one stream --------------------------------------------------------------------------------

    async def _changes(self) -> AsyncGenerator[Change]:
        """Changes from one stream. Raises LostPlace, NoAnswer, Refused."""
        end = prefix_end(self._prefix)
        begin = self._proof.begin(self._revision)
        watched = WatchFrom(self._prefix, end, begin, progress_notify=True)
        lines = self._client.watch(Watch(watched), self._silence_s)
        async with aclosing(lines):
            while True:
                answer = await self._next(lines)
                if self._client.history != self._history:
                    raise LostPlace("etcd was replaced")
                if answer.canceled:
                    raise _ended(answer)
                if answer.created:
                    self._pause_s = _PAUSE_S
                    if self._kept is not None:
                        raise _OnlyKept
                    await self._check_place(answer.header.revision)
                    continue
                self._client.outage.answered(self)
                for change in self._grouped(answer):
                    self._revision = change.revision
                    yield change
                if answer.header.revision > self._revision and not answer.events:
                    await self._touch()  # progress is not believed, see _grouped

    async def _check_place(self, revision: int) -> None:
        """A member that has not got as far will; an etcd that was restored will not. Raises
        LostPlace, NoAnswer, Refused."""
        if revision < self._revision and await self._touch() < self._revision:
            raise Restored("etcd was restored")

    async def _next(self, lines: AsyncIterator[WatchAnswer]) -> WatchAnswer:
        """The next line; a silent stream must report a write. Raises NoAnswer, Refused."""
        loop = asyncio.get_running_loop()
        coming, self._heard_s = asyncio.ensure_future(anext(lines)), loop.time()
        try:
            while not coming.done():
                self._doubt = loop.create_future()
                left_s = self._due_s() - loop.time()
                if left_s > 0:
                    ends = (coming, self._doubt)
                    await asyncio.wait(ends, timeout=left_s, return_when=FIRST_COMPLETED)
                else:
                    await self._test()
            return coming.result()
        finally:
            coming.cancel()
            await asyncio.wait([coming])
            _ = coming.cancelled() or coming.exception()  # retrieved, if nobody else did

    @property
    def is_quiet(self) -> bool:
        """True if it is to be tested, or will be soon: it said nothing for half of the time."""
        silent_s = asyncio.get_running_loop().time() - self._heard_s
        return self._is_doubtful or silent_s > self._silence_s / 2

    def _due_s(self) -> float:
        """When the stream is to be tested, or given up if it was, on the loop's clock."""
        if self._expected > self._revision:
            return max(self._heard_s, self._expected_at_s) + _REPORTED_S
        return self._heard_s + (0.0 if self._is_doubtful else self._silence_s)

    async def _test(self) -> None:
        """Write what the stream must report; raises NoAnswer if there was such a write already."""
        if self._expected > self._revision:
            self._expected, self._is_doubtful = 0, True  # the next stream is tested at once
            raise NoAnswer("a watch does not report a write", was_sent=True)
        self._is_doubtful = False
        written = await self._touch()
        self._client.outage.answered(self)
        self.expect(written)

    def _grouped(self, answer: WatchAnswer) -> Iterable[Change]:
        """The changes of a line, by revision; a line has all events of each.

        A line without events is a progress notification. Its revision is not taken over: etcd sent
        some ahead of events (etcd-io/etcd#15220). A write that the stream reports is proof.
        """
        for revision, grouped in groupby(answer.events, lambda event: event.kv.mod_revision):
            events, is_new = list(grouped), revision > self._revision
            self._proof.check(revision, events, is_new=is_new)
            if is_new:
                yield self._change(revision, events)

    def _is_writers(self, event: Event) -> bool:
        return event.type != "DELETE" and self._key_of(event.kv.key) is None

    def _change(self, revision: int, events: Iterable[Event]) -> Change:
        records: dict[str, bytes | None] = {}
        for event in events:
            key = self._key_of(event.kv.key)
            if key is None:
                continue
            if event.type == "DELETE":
                records[key] = None
                self._known.pop(key, None)
            else:
                records[key] = event.kv.value
                self._known[key] = revision
        return Change(revision, records)

    # -- without a stream --------------------------------------------------------------------------

    async def _difference(self, lost: LostPlace) -> Change | None:
        """The changes since the last report, from a fresh read; None if there are none."""
        while isinstance(found := await self._read_all(), Unavailable):  # noqa: ASYNC110
            await asyncio.sleep(_PAUSE_S)
        kept, self._kept = self._kept, None
        if kept is not None:  # revisions say nothing of another past
            values = {record.key: record.value for record in found.records}
            others = {key for key, value in kept.items() if values.get(key) != value}
            self._known |= dict.fromkeys(others, _UNTOLD)
        change = difference(self._known, found)
        self._proof.forget()
        if isinstance(lost, Restored) or self._is_of_another_past(found, change):
            change = difference(dict.fromkeys(self._known, _UNTOLD), found)
        elif not change.records and found.revision == self._revision:
            return None
        self._history = self._client.history
        self._revision, self._expected = found.revision, 0
        self._known = {record.key: record.revision for record in found.records}
        return change

    def _is_of_another_past(self, found: Snapshot, change: Change) -> bool:
        """True if a record was written before the last report, and was not reported."""
        if self._client.history != self._history or found.revision < self._revision:
            return True
        return any(
            revision <= self._revision and self._known.get(key) != _UNTOLD
            for key, revision in change.revisions.items()
        )


def difference(known: dict[str, int], found: Snapshot) -> Change:
    """The change from records with known revisions to those found."""
    written = [each for each in found.records if known.get(each.key) != each.revision]
    gone = known.keys() - {record.key for record in found.records}
    records: dict[str, bytes | None] = dict.fromkeys(sorted(gone))
    records |= {record.key: record.value for record in written}
    return Change(found.revision, records, {each.key: each.revision for each in written})


def _ended(answer: WatchAnswer) -> LostPlace | NoAnswer:
    """The reason of a watch that etcd ended; the stream itself stays open."""
    if answer.compact_revision:
        return LostPlace(f"changes up to {answer.compact_revision} were compacted")
    return NoAnswer(answer.cancel_reason or "etcd ended a watch", was_sent=True)
