"""Catalog: the queues of this process's view, and the actions that change them.

    queue_view.py     the queues as requests read them, kept up to date by the watch
    queue_rules.py    the meaning of each action: the records to write, or AWS's error
    coordination/     the store of the records, which reports every change

An action asks the rules, commits, and returns once the view shows it. Messages belong to shards and
never come here; no write is in the hot path.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import islice

import structlog

from cluster.catalog import later_parts, lost_parts, part_rules
from cluster.catalog import queue_rules as rules
from cluster.catalog.adopted_records import AdoptedRecords
from cluster.catalog.catalog_records import (
    Entry,
    KeptQueue,
    KeptState,
    QueueName,
    name_of,
    queue_key,
)
from cluster.catalog.other_hosts import OtherHosts
from cluster.catalog.part_rules import NewParts
from cluster.catalog.queue_rules import ALL_SHARDS, Decision, NewQueue, Waits
from cluster.catalog.queue_view import QueueChange, QueueView
from cluster.catalog.record_codec import CatalogUnreadable, RecordCodec
from cluster.clock import Clock, Entropy
from cluster.coordination.coordination import (
    Change,
    Conflict,
    Coordination,
    Done,
    LeaseLost,
    Transaction,
    Unavailable,
    Unknown,
)
from cluster.keys.keyring import Secrets
from storage.files.refusing_disk import tells_of_refusal
from visibility.contract.errors import QueueDoesNotExist, ServiceUnavailable
from visibility.contract.model import QueueDefinition
from visibility.contract.queue_policy import statements_without_effect
from visibility.contract.tags import check_archive
from visibility.rows.row_values import NotedParts

_RECEIPT_KEY_BYTES = 32
_TRIED_S = 10.0
"""Time for which an action is tried again while other hosts change the same records."""
_PAUSE_MS = 20
"""Bound of the pause before it is tried again, by chance."""
_SHOWN_S = 10.0
"""Bound of the time after which the watch reports a change that was committed."""
_CAUGHT_UP_S = 5.0
"""Bound of the time for which requests wait for the view to catch up."""
_AWAY_S = 0.5
"""The same while the records do not answer: it has been waited for long enough."""

_NO_SPACE = "The service has no space for this change. Please try again."

OnQueueChange = Callable[[QueueChange], None]


class Catalog(QueueView):
    """Reads are synchronous and from memory; an action is durable when it returns.

    Besides the errors of its rule, an action raises ServiceUnavailable if the records cannot be
    written now.
    """

    def __init__(
        self,
        coordination: Coordination,
        *,
        clock: Clock,
        entropy: Entropy,
        secrets: Secrets,
        shards: Iterable[int],
        waits: Waits,
        restore_window_ms: int,
        others: OtherHosts,
        has_archive: bool,
    ) -> None:
        """To be used once it is `opened`. The coordination is closed with it.

        An action returns once the `others` show its change; before the first new id is issued on a
        shard, ids are raised there, and before parts are changed, all shards are heard. New queues
        are placed on `shards` in turn, unless `others` choose. Tags that need an archive are
        refused unless the service `has_archive`.
        """
        super().__init__(restore_window_ms, others.draining_shards)
        self._coordination = coordination
        self._codec = RecordCodec(secrets)
        self._clock = clock
        self._entropy = entropy
        self.shards = sorted(shards)
        """The shards of the service, which new queues go to."""
        self._waits = waits
        self._writing = asyncio.Lock()
        self._listeners: list[OnQueueChange] = []
        self._others = others
        self.is_shared = others.is_shared
        """True in a cluster: other hosts change queues, too."""
        self._raised: set[int] = set()
        """Shards on which ids were raised."""
        self.times_restored = 0
        """Counts the times that the records may have gone back to an older state of etcd."""
        self.on_restored: list[Callable[[], None]] = []
        """Called then, once the view shows the records."""
        self._has_archive = has_archive
        self._written = self._shown_by_others = 0
        """The revision of the last change by this host, and the one that others show."""
        self._awaited: list[tuple[int, asyncio.Future[None]]] = []
        """Revisions that actions wait for."""
        self._catching_up: list[Callable[[bool], None]] = []
        """Whom the next mark is for: called with True if the view shows it."""
        self._marking: asyncio.Task[None] | None = None
        self.is_away = False
        """True since a mark was not shown in time, until the watch reports anything."""
        self.adopted = AdoptedRecords(self)
        """The queues as other hosts said."""
        self._is_unwritable = False
        """True since a change could not be written, until one was."""
        self._log = structlog.get_logger("catalog")

    async def opened(self) -> Catalog:
        """This catalog, once it has loaded all records and watches them. Raises CatalogUnreadable,
        with the coordination closed."""
        try:
            await self._begin()
        except BaseException:
            await self._coordination.close()
            raise
        return self

    async def _begin(self) -> None:
        found = await self._coordination.read_all()
        if isinstance(found, Unavailable):
            raise CatalogUnreadable(found.reason)
        entries = {
            key: (revision, self._codec.decode(key, value))
            for key, value, revision in found.records
        }
        self.load(found.revision, entries)
        await self._coordination.watch(found, self._on_change)

    async def close(self) -> None:
        """Stop watching, close the coordination."""
        if self._marking is not None:
            self._marking.cancel()
            await asyncio.wait([self._marking])
        await self._coordination.close()

    # -- the watch ---------------------------------------------------------------------------------

    def subscribe(self, listener: OnQueueChange) -> None:
        """Call it with every change from now on, at the moment the view begins to show it."""
        self._listeners.append(listener)

    def _on_change(self, change: Change) -> None:
        is_restored = change.revision < self.revision or bool(change.revisions)  # or it may be
        if is_restored:
            self.times_restored += 1
            self._raised.clear()
        self.is_away = False
        self.adopted.give_way(change, is_restored=is_restored)
        entries = dict(self._read(change.records))
        for queue_change in self.apply(change.revision, entries, change.revisions):
            for listener in self._listeners:
                listener(queue_change)
        if is_restored:
            for call in self.on_restored:
                call()
        for revision, future in self._awaited:
            if revision <= self.revision and not future.done():
                future.set_result(None)

    def _read(self, records: Mapping[str, bytes | None]) -> Iterator[tuple[str, Entry | None]]:
        """Entries of records; one that cannot be read stays as the view shows it."""
        for key, value in records.items():
            try:
                yield key, None if value is None else self._codec.decode(key, value)
            except CatalogUnreadable as error:
                self._log.error("record_unreadable", reason=str(error))

    async def shown(self, revision: int) -> None:
        """Wait until the view shows this revision. Raises ServiceUnavailable if it does not soon:
        the watch is away."""
        if self.revision >= revision:
            return
        self._coordination.expect(revision)
        awaited = (revision, asyncio.get_running_loop().create_future())
        self._awaited.append(awaited)
        try:
            async with asyncio.timeout(_SHOWN_S):
                await awaited[1]
        except TimeoutError:
            raise ServiceUnavailable() from None
        finally:
            self._awaited.remove(awaited)

    def when_caught_up(self, then: Callable[[], None]) -> None:
        """Call once the view has all that was committed before. One mark serves all that wait when
        it is made."""
        self._when_marked(lambda is_shown: then())

    async def caught_up(self) -> bool:
        """Wait for `when_caught_up`; False if the view may still lack something."""
        known: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._when_marked(lambda is_shown: None if known.done() else known.set_result(is_shown))
        return await known

    def _when_marked(self, then: Callable[[bool], None]) -> None:
        self._catching_up.append(then)
        if self._marking is None or self._marking.done():
            self._marking = asyncio.get_running_loop().create_task(self._mark())

    async def _mark(self) -> None:
        """Commit nothing, and wait for the report of that: it comes behind all before it."""
        while self._catching_up:
            waiting, self._catching_up = self._catching_up, []
            is_shown, is_away = False, True
            with suppress(TimeoutError, ServiceUnavailable):
                async with asyncio.timeout(_AWAY_S if self.is_away else _CAUGHT_UP_S):
                    before = self.revision
                    outcome = await self._coordination.commit(Transaction({}, {}))
                    if isinstance(outcome, Done):
                        await self.shown(outcome.revision)
                        is_away = False
                        # Else etcd went back, and the view shows what was before that.
                        is_shown = outcome.revision > before or self.revision < before
            self.is_away = is_away
            for then in waiting:
                asyncio.get_running_loop().call_soon(then, is_shown)

    # -- what hosts tell each other ----------------------------------------------------------------

    def records_of(self, names: Iterable[QueueName]) -> dict[QueueName, bytes | None]:
        """The records of these queues as the view shows them, and of their dead-letter queues;
        None for one that does not exist."""
        found: dict[QueueName, bytes | None] = {}
        for name in names:
            queue = self.find(name)
            target = None if queue is None else self.dead_letter_queue(queue)
            found[name] = None if queue is None else self._codec.encode(queue)
            if target is not None:
                found[name_of(target)] = self._codec.encode(target)
        return found

    def adopt(self, revision: int, records: Mapping[QueueName, bytes | None]) -> bool:
        """Show queues as another host does, whose view is of this revision, until the watch knows
        better. False if some is left as it is."""
        placed = {queue_key(name): value for name, value in records.items()}
        read = dict(self._read(placed))
        entries = {key: each for key, each in read.items() if not isinstance(each, KeptQueue | int)}
        return self.adopted.adopt(revision, entries) and len(read) == len(records)

    # -- write -------------------------------------------------------------------------------------

    @asynccontextmanager
    async def unchanging(self) -> AsyncIterator[None]:
        """Hold back all changes, for a copy of the file; reads go on."""
        async with self._writing:
            yield

    async def _do(self, decide: Callable[[], Decision]) -> QueueDefinition | None:
        """Commit the decision of a rule, and have the other hosts show it. Returns its queue."""
        give_up_s = asyncio.get_running_loop().time() + _TRIED_S
        try:
            async with asyncio.timeout_at(give_up_s):
                await self._writing.acquire()
        except TimeoutError:
            raise ServiceUnavailable() from None
        try:
            decision = await self._decide(decide, give_up_s)
            # Another host may have taken away already what this one has just made.
            queue = self.queue_of_id(decision.queue_id) or decision.made()
            revision = self._written
        finally:
            self._writing.release()
        # Also if it changed nothing: it may repeat a change that is not shown there yet.
        if self.is_shared and revision != self._shown_by_others:
            await self._others.spread(revision)
            if revision == self._written:
                self._shown_by_others = revision
        return queue

    async def _issue(self, decide: Callable[[], Decision]) -> QueueDefinition:
        """Commit a decision that may give a queue a new id: first its shard is asked for the ids
        that it has, so that none comes twice."""
        while (shard := self._unraised(decide())) is not None:
            await self._raise(shard)

        def decide_again() -> Decision:
            decision = decide()
            if self._unraised(decision) is not None:  # the queue went meanwhile
                raise ServiceUnavailable()
            return decision

        queue = await self._do(decide_again)
        assert queue is not None
        return queue

    async def change_parts(self, decide: Callable[[], Decision]) -> QueueDefinition:
        """Make the change that `decide` returns, once all shards have reported their parts: numbers
        and ids of parts that only they know are in use. `decide` may raise errors of its own."""
        await self._others.all_heard()
        return await self._issue(decide)

    async def _raise(self, shard: int) -> None:
        await self._others.ids_raised(shard)
        self._raised.add(shard)

    def _unraised(self, decision: Decision) -> int | None:
        """A shard of a new queue whose ids are to be raised first; None if there is none."""
        if not self._others.may_lack_ids:
            return None
        new = (each for each in decision.entries.values() if isinstance(each, QueueDefinition))
        shards = (part.shard for queue in new for part in queue.all_parts())
        return next((shard for shard in shards if shard not in self._raised), None)

    async def _decide(self, decide: Callable[[], Decision], give_up_s: float) -> Decision:
        """Decide and commit, again while other hosts change the same records. Returns the decision
        that counts."""
        while True:
            decision = decide()
            if not decision.entries and self.is_shared:
                # The view may show what is no more. Without etcd it is all there is to go by.
                await self.caught_up()
                decision = decide()
            if not decision.entries or await self._commit(decision):
                return decision
            if asyncio.get_running_loop().time() >= give_up_s:
                raise ServiceUnavailable()
            await asyncio.sleep(self._entropy.bits128() % _PAUSE_MS / 1000)

    async def _commit(self, decision: Decision) -> bool:
        """Write records; False if others changed them meanwhile. Raises ServiceUnavailable."""
        entries = decision.entries
        values = {
            key: None if entry is None else self._codec.encode(entry)
            for key, entry in entries.items()
        }
        conditions = {key: self.revision_of(key) for key in entries}
        commit = decision.commit or self._coordination.commit
        outcome = await commit(Transaction(conditions, values))
        if isinstance(outcome, Done | Conflict):
            if self._is_unwritable:
                self._is_unwritable = False
                self._log.warning("catalog_written_again")
            if isinstance(outcome, Done):
                self._written = outcome.revision
            await self.shown(outcome.revision)
            return isinstance(outcome, Done)
        assert not isinstance(outcome, LeaseLost), "no lease was named"
        if isinstance(outcome, Unknown):
            found = await self._coordination.read_all()
            if not isinstance(found, Unavailable):
                await self.shown(found.revision)
                if all(self.entry(key) == entry for key, entry in entries.items()):
                    self._written = found.revision
                    return True
        self._report_unwritten(outcome.reason)
        raise ServiceUnavailable(_NO_SPACE if tells_of_refusal(outcome.reason) else None)

    def _report_unwritten(self, reason: str) -> None:
        if self._is_unwritable:
            return  # said
        self._is_unwritable = True
        self._log.error(
            "catalog_not_written",
            reason=reason,
            means="changes of queues are answered 503, for which clients try again; messages are "
            "served",
            action="none if it ends within seconds; else see the catalog, or etcd in "
            "`holdfast cluster status`",
        )

    def _report_policy(self, queue_arn: str, given: Mapping[str, str]) -> None:
        statements = statements_without_effect(given.get("Policy", ""), queue_arn)
        if statements:
            self._log.warning(
                "policy_without_effect",
                queue=queue_arn,
                statements=statements,
                means="the queue's new policy is stored, but the Resource of these statements is "
                "not the queue, so they neither allow nor deny anything",
                action="set the policy again with the queue's ARN as their Resource",
            )

    def _report_taken(self, noted: NotedParts, taken: Collection[int]) -> None:
        queue = self.queue(noted.account, noted.region, noted.name)
        self._log.error(
            "parts_not_written_back",
            queue=queue.arn,
            queue_ids=taken,
            means="etcd was restored from before a change of this queue's parts, and other queues "
            "have got these ids of the parts since: the queue stays as etcd knows it, and the "
            "messages of its later parts stay on disk and are not served",
            action="see 'An etcd from an old snapshot' in the runbook",
        )

    def _now_ms(self) -> int:
        return int(self._clock.wall_s() * 1000)

    def restorable_queues(self) -> list[KeptQueue]:
        """The deleted and purged queues that can be restored now, the latest first."""
        return self.kept.restorable(self._now_ms())

    def obstacle(self, kept: KeptQueue) -> str | None:
        """The reason for which a queue cannot be restored now, None if it can."""
        return rules.obstacle(self, kept)

    # -- actions: see the rule of the same name ----------------------------------------------------

    async def add_parts(self, queue: QueueDefinition, added: NewParts) -> QueueDefinition:
        """Add parts to a queue."""
        return await self.change_parts(lambda: part_rules.add_parts(self, queue, added))

    async def replace_parts(self, queue: QueueDefinition, added: NewParts) -> QueueDefinition:
        """Put new parts into the place of those of a FIFO queue."""
        return await self.change_parts(
            lambda: part_rules.replace_parts(self, queue, added, self._now_ms())
        )

    async def drain_parts(self, queue: QueueDefinition, numbers: Iterable[int]) -> QueueDefinition:
        """Let parts of a queue take no messages any more."""
        closing = list(numbers)
        return await self.change_parts(
            lambda: part_rules.drain_parts(self, queue, closing, self._now_ms())
        )

    async def move_part(
        self, queue: QueueDefinition, number: int, added: NewParts
    ) -> QueueDefinition:
        """Put a new part into the place of one, which drains into it."""
        return await self.change_parts(
            lambda: part_rules.move_part(self, queue, number, added, self._now_ms())
        )

    async def remove_shards(self, decide: Callable[[], Decision]) -> None:
        """Do what this decides by `queue_rules.remove_shards`. It may raise errors of its own."""
        await self._do(decide)

    async def give_up_parts(self, queue: QueueDefinition, lost: Collection[int]) -> None:
        """Let a queue go on without its parts on shards that are lost."""

        def decide() -> Decision:
            shards = self._others.choose(self, name_of(queue)) or self.shards
            return lost_parts.give_up_parts(self, queue, lost, shards, self._now_ms())

        while (shard := self._unraised(decide())) is not None:
            await self._raise(shard)
        await self._do(decide)

    async def end_kept(self, lost: Collection[int]) -> None:
        """Drop the deleted and purged queues of shards that are lost."""

        def decide() -> Decision:
            found = (each for each in self.kept if each.queue.shard in lost and each.is_needed)
            return rules.set_state(islice(found, rules.AT_ONCE), KeptState.DROPPING)

        while decide().entries:
            await self._do(decide)

    async def remove_part(self, queue_id: int, version: int) -> None:
        """Remove a part that its shard reported empty, for the queue in this version."""
        await self._do(lambda: part_rules.remove_part(self, queue_id, version, self._now_ms()))

    async def create_queue(
        self, name: QueueName, attributes: Mapping[str, str], tags: Mapping[str, str]
    ) -> QueueDefinition:
        """The new queue, or the existing one if no given attribute differs."""
        self._check_archive(tags)
        receipt_key = self._entropy.secret(_RECEIPT_KEY_BYTES)

        def decide() -> Decision:
            shards = self._others.choose(self, name) or self.shards
            new = NewQueue(name, attributes, tags, receipt_key, shards)
            return rules.create(self, new, self._now_ms(), self._waits)

        queue = await self._issue(decide)
        self._report_policy(queue.arn, attributes)
        return queue

    async def raise_ids(self, at_least: int) -> None:
        """Issue no queue id up to this one any more."""
        await self._do(lambda: rules.raise_ids(self, at_least))

    async def write_back_parts(self, noted: Mapping[bytes, NotedParts]) -> list[QueueDefinition]:
        """Write back the parts of queues whose records are older than these notes; returns the
        queues. Parts with the id of another queue are not written, with an error in the log."""
        written: list[QueueDefinition] = []
        for name, note in noted.items():
            decide = partial(later_parts.write_back, self, name, note)
            queue = await self._do(decide) if decide().entries else None
            if taken := later_parts.taken_ids(self, name, note):
                self._report_taken(note, taken)
            elif queue is not None:
                written.append(queue)
        return written

    async def delete_queue(self, queue: QueueDefinition, *, force: bool = False) -> None:
        """Take a queue away; it can be restored within the window."""
        await self._do(lambda: rules.delete(self, queue, self._now_ms(), force=force))

    async def purge_queue(self, queue: QueueDefinition, *, force: bool = False) -> QueueDefinition:
        """Give the queue a new id, under which it is empty."""
        return await self._issue(
            lambda: rules.purge(self, queue, self._now_ms(), self._waits, force=force)
        )

    async def restore_queue(self, queue_id: int) -> QueueDefinition:
        """Bring a deleted queue back; begin to restore a purged one, and return the queue that
        continues it."""
        queue = await self._do(lambda: rules.restore(self, queue_id, self._now_ms()))
        if queue is None:  # what continues it was deleted or purged meanwhile
            raise QueueDoesNotExist()
        return queue

    async def end_restoring(self, queue_id: int, state: KeptState) -> None:
        """Stop restoring a purged queue: what is left of it is dropped, or kept to the end of its
        window."""
        await self._do(lambda: rules.end_restoring(self, queue_id, state))

    async def end_windows(self, now_ms: int, shards: Container[int] = ALL_SHARDS) -> None:
        """Mark the kept queues of these shards whose window is over at `now_ms` (epoch), and those
        beyond KEPT_MAX, as to be dropped."""
        while rules.windows_over(self, now_ms, shards):
            await self._do(lambda: rules.end_windows(self, now_ms, shards))

    async def give_up_oldest(self, shards: Container[int]) -> None:
        """Mark the queue of these shards that was deleted or purged first as to be dropped, since
        the disk is short of space."""

        def decide() -> Decision:
            kept = self.kept.in_state(KeptState.KEPT)
            oldest = [each for each in kept if each.queue.shard in shards][-1:]
            return rules.set_state(self.kept.all_together(oldest, 1), KeptState.DROPPING)

        await self._do(decide)

    async def forget_queue(self, queue_id: int) -> None:
        """Forget a queue whose messages are gone."""
        await self._do(lambda: rules.forget(self, queue_id))

    async def set_attributes(self, queue: QueueDefinition, given: Mapping[str, str]) -> None:
        """Change settings."""
        await self._do(lambda: rules.set_attributes(self, queue, given, self._now_ms()))
        self._report_policy(queue.arn, given)

    async def add_permission(
        self, queue: QueueDefinition, label: str, accounts: Sequence[str], actions: Sequence[str]
    ) -> None:
        """Add a statement to the queue's policy."""
        await self._do(
            lambda: rules.add_permission(self, queue, label, accounts, actions, self._now_ms())
        )

    async def remove_permission(self, queue: QueueDefinition, label: str) -> None:
        """Remove a statement; the last one takes the policy along."""
        await self._do(lambda: rules.remove_permission(self, queue, label, self._now_ms()))

    async def tag_queue(self, queue: QueueDefinition, tags: Mapping[str, str]) -> None:
        """Add or overwrite tags."""
        self._check_archive(tags)
        await self._do(lambda: rules.add_tags(self, queue, tags, self._now_ms()))

    def _check_archive(self, given: Mapping[str, str]) -> None:
        if not self._has_archive:
            check_archive(given, "this service has none (setting lake)")

    async def untag_queue(self, queue: QueueDefinition, keys: Iterable[str]) -> None:
        """Remove tags; unknown keys are ignored."""
        gone = list(keys)
        await self._do(lambda: rules.remove_tags(self, queue, gone, self._now_ms()))
