"""Checkpoints: gives other hosts the rows of this host's shards, as files.

A checkpoint is a folder of hard links beside the shard's, made in a thread. Hosts that ask at about
the same time share one. It is removed when each has said that it is done, or was silent for too
long; the next start removes what a crash left (`remove_outgoing`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import structlog

from cluster.peers import checkpoint_messages
from cluster.peers.link import Call, ChannelService
from cluster.peers.log_retention import LogRetention
from cluster.peers.peer_outcomes import Reason, Refused
from cluster.peers.peer_settings import Channel, CheckpointSettings
from cluster.peers.transport import Transport
from cluster.tasks import start_task
from storage.copies.checkpoint_files import CheckpointFiles
from storage.copies.replaced_rows import outgoing_of
from storage.copies.scrub import InThread
from storage.engines.kept_files import OF_ONE_OPENING
from storage.engines.readable import is_damage
from storage.engines.store import StoreFailed
from storage.log.entry import Position
from visibility.rows.row_codec import DamagedRecord


class Source(Protocol):
    """A shard that is open here."""

    folder: Path
    """The folder of its rows; checkpoints are made beside it."""
    log_id: bytes
    holds: LogRetention

    @property
    def conflict(self) -> str:
        """The conflict of its log with the leader's, empty if there is none."""

    def applied_index(self) -> int:
        """Index of the last Entry in the rows."""

    def log_start(self) -> int:
        """Index of the Entry behind which this host's log can be sent."""

    def checkpoint(self, folder: Path) -> Position:
        """Make `folder` a copy of the rows; called in a thread, and not closed meanwhile."""


@dataclass(slots=True, eq=False)
class _Offer:
    """A checkpoint that is being made or given."""

    number: int
    shard: int
    source: Source
    folder: Path
    begun_s: float
    floor: int
    """The rows held this Entry when it was begun."""
    manifest: checkpoint_messages.Manifest | None = None
    users: dict[str, float] = field(default_factory=dict)
    """When each host was last heard of."""
    waiting: list[Call] = field(default_factory=list)
    reads: int = 0
    checking: asyncio.Task[None] | None = None
    """Reads all its rows, once a host asked for that."""
    checked: checkpoint_messages.Checked | Refused | None = None
    """The result, once it is known."""

    @property
    def index(self) -> int:
        """The Entry that it holds at least."""
        return self.floor if self.manifest is None else self.manifest.position.index


class Checkpoints:
    """`join` shards; `leave` before a shard is closed."""

    def __init__(
        self,
        transport: Transport,
        *,
        files: CheckpointFiles,
        check_rows: Callable[[Path], Awaitable[Position]],
        in_thread: InThread,
        monotonic_s: Callable[[], float],
        settings: CheckpointSettings,
    ) -> None:
        """`check_rows` reads all rows of a folder: see `check_rows_of`."""
        self._files = files
        self._check_rows = check_rows
        self._in_thread = in_thread
        self._monotonic_s = monotonic_s
        self._settings = settings
        self._sources: dict[int, Source] = {}
        self._offers: list[_Offer] = []
        self._numbers = count(1)
        self._tasks: dict[int, set[asyncio.Task[None]]] = {}
        """By shard."""
        self._timer: asyncio.TimerHandle | None = None
        self._log = structlog.get_logger("checkpoints")
        transport.serve(Channel.CHECKPOINTS, ChannelService(on_request=self._received))

    def join(self, shard: int, source: Source) -> None:
        """Give checkpoints of a shard from now on."""
        self._sources[shard] = source

    async def leave(self, shard: int) -> None:
        """Give none any more; returns when nothing uses the shard's files."""
        self._sources.pop(shard, None)
        for offer in [each for each in self._offers if each.shard == shard]:
            self._remove(offer)
        while tasks := self._tasks.get(shard):
            await asyncio.wait(tasks)

    # -- requests ----------------------------------------------------------------------------------

    def _received(self, call: Call) -> None:
        request = checkpoint_messages.decode_request(call.body)
        source = self._sources.get(request.shard)
        if source is None:
            call.refuse(checkpoint_messages.Refusal.NO_SHARD)
        elif isinstance(request, checkpoint_messages.Begin):
            self._begin(call, request, source)
        elif isinstance(request, checkpoint_messages.Read):
            self._read(call, request)
        elif isinstance(request, checkpoint_messages.Keep):
            source.holds.hold(call.peer, request.index)
            call.answer(checkpoint_messages.encode(checkpoint_messages.Kept(source.log_start())))
        elif isinstance(request, checkpoint_messages.Check):
            self._check(call, request)
        else:
            self._end(call, request)

    def _begin(self, call: Call, request: checkpoint_messages.Begin, source: Source) -> None:
        if request.log_id != source.log_id:
            call.refuse(Reason.OTHER_LOG)
            return
        if source.conflict:
            call.refuse(checkpoint_messages.Refusal.CONFLICT, source.conflict)
            return
        if source.applied_index() < request.at_least:
            call.refuse(
                checkpoint_messages.Refusal.OLDER, f"its rows are of Entry {source.applied_index()}"
            )
            return
        offer = self._offer_to_share(request, source) or self._begin_offer(request, source)
        for other in [each for each in self._offers if each is not offer]:
            if other.shard == request.shard:
                self._leave_offer(other, call.peer)
        self._keep_for(offer, call.peer)
        if offer.manifest is not None:
            call.answer(checkpoint_messages.encode(offer.manifest))
        else:
            offer.waiting.append(call)

    def _offer_to_share(self, request: checkpoint_messages.Begin, source: Source) -> _Offer | None:
        """A checkpoint of other hosts that serves this one as well."""
        now_s = self._monotonic_s()
        for offer in self._offers:
            is_young = now_s - offer.begun_s <= self._settings.shared_s
            is_new_enough = offer.index >= max(source.log_start(), request.at_least)
            if offer.shard == request.shard and is_young and is_new_enough:
                return offer
        return None

    def _begin_offer(self, request: checkpoint_messages.Begin, source: Source) -> _Offer:
        number = next(self._numbers)
        folder = outgoing_of(source.folder, number)
        floor = source.applied_index()
        now_s = self._monotonic_s()
        offer = _Offer(number, request.shard, source, folder, now_s, floor)
        self._offers.append(offer)
        self._run(request.shard, self._make_and_offer(offer))
        if self._timer is None:
            self._look_later()
        return offer

    def _asked_about(
        self, call: Call, request: checkpoint_messages.Read | checkpoint_messages.Check
    ) -> tuple[_Offer, checkpoint_messages.Manifest] | None:
        """The checkpoint that the peer asks about, if it was made; refuses the call if not."""
        offer = self._offer_for(call.peer, request.shard, request.number)
        if offer is None or offer.manifest is None:
            call.refuse(checkpoint_messages.Refusal.NO_CHECKPOINT)
            return None
        self._keep_for(offer, call.peer)
        return offer, offer.manifest

    def _read(self, call: Call, request: checkpoint_messages.Read) -> None:
        made = self._asked_about(call, request)
        if made is None:
            return
        offer, manifest = made
        if not self._is_in(manifest, request):
            call.refuse(checkpoint_messages.Refusal.UNREADABLE, "there are no such bytes")
        elif offer.reads >= 2 * self._settings.chunks_max * len(offer.users):
            call.refuse(Reason.BUSY)  # more than hosts of this version ask for at a time
        else:
            offer.reads += 1
            self._run(offer.shard, self._answer(call, offer, manifest, request))

    def _is_in(
        self, manifest: checkpoint_messages.Manifest, request: checkpoint_messages.Read
    ) -> bool:
        if not 0 <= request.file < len(manifest.files):
            return False
        end = request.offset + request.size
        is_small = 0 < request.size <= self._settings.chunk_bytes
        return is_small and request.offset >= 0 and end <= manifest.files[request.file].size

    async def _answer(
        self,
        call: Call,
        offer: _Offer,
        manifest: checkpoint_messages.Manifest,
        request: checkpoint_messages.Read,
    ) -> None:
        file = offer.folder / manifest.files[request.file].name
        read = partial(self._files.read, file, request.offset, request.size)
        try:
            if not call.is_cancelled:
                call.answer(await self._in_thread(read))
        except OSError as error:
            call.refuse(checkpoint_messages.Refusal.UNREADABLE, f"{file.name}: {error.strerror}")
        finally:
            offer.reads -= 1

    def _check(self, call: Call, request: checkpoint_messages.Check) -> None:
        """Say whether the rows are damaged here, or at the host that got them."""
        made = self._asked_about(call, request)
        if made is None:
            return
        offer, _ = made
        if offer.checking is None:
            offer.checking = self._run(offer.shard, self._read_all(offer))
        if isinstance(offer.checked, Refused):
            call.refuse(offer.checked.reason, offer.checked.detail)
        else:
            call.answer(
                checkpoint_messages.encode(offer.checked or checkpoint_messages.Checked(False, ""))
            )

    async def _read_all(self, offer: _Offer) -> None:
        try:
            await self._check_rows(offer.folder)
        except (StoreFailed, DamagedRecord, OSError) as error:
            text = str(error)
            is_of_rows = isinstance(error, DamagedRecord) or (
                isinstance(error, StoreFailed) and is_damage(error)
            )
            if is_of_rows:
                offer.checked = checkpoint_messages.Checked(True, text)
            else:
                offer.checked = Refused(checkpoint_messages.Refusal.NOT_CHECKED, text)
            event = "checkpoint_damaged" if is_of_rows else "checkpoint_not_checked"
            self._log.error(event, shard=offer.shard, error=text)
        else:
            offer.checked = checkpoint_messages.Checked(True, "")

    def _end(self, call: Call, request: checkpoint_messages.End) -> None:
        offer = self._offer_for(call.peer, request.shard, request.number)
        if offer is not None:
            self._leave_offer(offer, call.peer)
        call.answer(b"")

    # -- making and removing -----------------------------------------------------------------------

    async def _make_and_offer(self, offer: _Offer) -> None:
        try:
            manifest = await self._make_folder(offer)
        except (StoreFailed, DamagedRecord, OSError) as error:
            self._log.error("checkpoint_not_made", shard=offer.shard, error=str(error))
            for call in offer.waiting:
                call.refuse(checkpoint_messages.Refusal.NOT_MADE, str(error))
            offer.waiting.clear()
            self._remove(offer)
            return
        offer.manifest = manifest
        for peer in offer.users:
            self._keep_for(offer, peer)
        for call in offer.waiting:
            call.answer(checkpoint_messages.encode(manifest))
        offer.waiting.clear()

    async def _make_folder(self, offer: _Offer) -> checkpoint_messages.Manifest:
        files, in_thread = self._files, self._in_thread
        await in_thread(partial(files.remove, offer.folder))
        position = await in_thread(partial(offer.source.checkpoint, offer.folder))
        described = []
        for name in await in_thread(partial(files.names, offer.folder)):
            if not name.startswith(OF_ONE_OPENING):
                file = offer.folder / name
                size = await in_thread(partial(files.size, file))
                checksum = await in_thread(partial(files.checksum, file))
                described.append(checkpoint_messages.CheckpointFile(name, size, checksum))
        manifest = checkpoint_messages.Manifest(
            offer.number, offer.source.log_id, position, described
        )
        self._log.info(
            "checkpoint_made", shard=offer.shard, index=position.index, bytes=manifest.size
        )
        return manifest

    def _offer_for(self, peer: str, shard: int, number: int) -> _Offer | None:
        for offer in self._offers:
            if (offer.shard, offer.number) == (shard, number) and peer in offer.users:
                return offer
        return None

    def _keep_for(self, offer: _Offer, peer: str) -> None:
        """Keep the files, and the log behind them."""
        offer.users[peer] = self._monotonic_s()
        offer.source.holds.hold(peer, offer.index)

    def _leave_offer(self, offer: _Offer, peer: str) -> None:
        if offer.users.pop(peer, None) is not None and not offer.users:
            self._remove(offer)

    def _remove(self, offer: _Offer) -> None:
        if offer not in self._offers:
            return
        self._offers.remove(offer)
        for call in offer.waiting:
            call.refuse(checkpoint_messages.Refusal.NO_CHECKPOINT)
        offer.waiting.clear()
        if offer.checking is not None:
            offer.checking.cancel()
        others = {
            task for task in self._tasks.get(offer.shard, ()) if task is not asyncio.current_task()
        }
        self._run(offer.shard, self._remove_folder(offer, others))

    async def _remove_folder(self, offer: _Offer, others: set[asyncio.Task[None]]) -> None:
        """Remove the folder once nothing makes or reads it."""
        if others:
            await asyncio.wait(others)
        try:
            await self._in_thread(partial(self._files.remove, offer.folder))
        except OSError as error:  # the next start tries again
            self._log.error("checkpoint_not_removed", folder=str(offer.folder), error=str(error))

    # -- time --------------------------------------------------------------------------------------

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._settings.silence_s / 4, self._look)

    def _look(self) -> None:
        """Remove checkpoints whose hosts are silent."""
        self._timer = None
        now_s = self._monotonic_s()
        for offer in list(self._offers):
            for peer, heard_s in list(offer.users.items()):
                if offer.manifest is not None and now_s - heard_s > self._settings.silence_s:
                    self._leave_offer(offer, peer)
        if self._offers:
            self._look_later()

    def _run(self, shard: int, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        tasks = self._tasks.setdefault(shard, set())
        return start_task(tasks, work)
