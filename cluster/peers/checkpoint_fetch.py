"""CheckpointFetch: gets the rows of a shard from another host, as files beside the shard's.

The files are asked for in chunks, a few at a time, and the next one only when one is written: a
slow disk here slows the other host down. A chunk without an answer is asked for again for a bounded
time. After that, after a refusal, or if a file is wrong twice, the fetch starts over with the next
host. So does a process that was restarted. What is returned is complete, checked and durable.

Rows that cannot be read here are damaged at the host that gave them only if that host has read them
itself and says so. Else this host's disk or its temporary folder may be at fault.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol

import msgspec
import structlog

from cluster.clock import Entropy
from cluster.peers import checkpoint_messages
from cluster.peers.breaker import Pause
from cluster.peers.peer_outcomes import Outcome, Reason, Refused
from cluster.peers.peer_settings import Channel, CheckpointSettings
from cluster.peers.transport import Transport, ask
from storage.copies.checkpoint_files import CheckpointFiles
from storage.copies.replaced_rows import MARK_FILE, Replaced, drop_incoming, make_incoming
from storage.copies.scrub import InThread
from storage.engines.readable import is_damage
from storage.engines.store import StoreFailed
from storage.log.entry import Position
from visibility.rows.row_codec import DamagedRecord

_TRIES = 2
"""Tries for a file: one that is wrong twice is wrong at its host."""
_AGAIN = (Reason.BUSY, Reason.CLOSING, Reason.FAILED)
"""Refusals after which the same host is asked again."""
_CHECK_AGAIN = (Reason.BUSY, Reason.CLOSING)
"""The same for `Check`, which older hosts refuse as FAILED."""


class _Failed(Exception):
    """This host does not give a usable checkpoint."""


class _OwnFault(Exception):
    """This host cannot read what it wrote."""


class NoGoodCopy(Exception):
    """All other hosts gave damaged rows, and confirmed that; or there are no others."""


class _Damaged(_Failed):
    """The rows of that host are damaged, too."""


class Ask(Protocol):
    """Sends a request to another host; see `ask_over`."""

    def __call__(
        self, host: str, request: checkpoint_messages.Request, timeout_s: float, /
    ) -> Awaitable[Outcome]:
        """Its outcome."""


class Wanted(NamedTuple):
    """The rows that are needed."""

    shard: int
    folder: Path
    """The folder of the shard's present rows."""
    log_id: bytes
    at_least: int
    """Index of the Entry behind which this host's log begins, 0 if it has none."""


class Hosts(Protocol):
    """The hosts that may have the rows."""

    def sources(self) -> Sequence[str]:
        """Those to ask, in this order: followers that have caught up, then the leader."""

    def leader(self) -> str | None:
        """The host that will send the log behind the checkpoint, if it is known."""


def ask_over(transport: Transport) -> Ask:
    """Ask over the links of a transport."""

    def ask_host(
        host: str, request: checkpoint_messages.Request, timeout_s: float, /
    ) -> Awaitable[Outcome]:
        return ask(
            transport, host, Channel.CHECKPOINTS, checkpoint_messages.encode(request), timeout_s
        )

    return ask_host


class CheckpointFetch:
    """One fetch: `run` is a task's work."""

    def __init__(
        self,
        wanted: Wanted,
        *,
        hosts: Hosts,
        ask: Ask,
        check_rows: Callable[[Path], Awaitable[Position]],
        files: CheckpointFiles,
        in_thread: InThread,
        monotonic_s: Callable[[], float],
        entropy: Entropy,
        settings: CheckpointSettings,
        on_no_good_copy: Callable[[], None],
    ) -> None:
        """`check_rows` reads all rows of a folder: see `check_rows_of`. `on_no_good_copy` is called
        when all other hosts gave damaged rows, and confirmed that."""
        self._on_no_good_copy = on_no_good_copy
        self._damaged: set[str] = set()
        """Hosts whose rows were damaged when they were last asked."""
        self._reasons: dict[str, str] = {}
        """The last reason that was logged of each host."""
        self._wanted = wanted
        self._at_least = wanted.at_least
        self._hosts = hosts
        self._ask_once = ask
        self._check_rows = check_rows
        self._files = files
        self._in_thread = in_thread
        self._monotonic_s = monotonic_s
        self._pause = Pause(settings.retry_s, settings.retry_max_s, entropy)
        self._settings = settings
        self._log = structlog.get_logger("checkpoints").bind(shard=wanted.shard)

    async def run(self) -> Replaced:
        """Fetch until it is done; `replace_rows` is next. Raises NoGoodCopy."""
        while True:
            for host in self._hosts.sources():
                try:
                    return await self._fetch_from(host)
                except _Failed as failure:
                    self._note(host, failure)
                    await self._drop()
                except (OSError, _OwnFault) as error:  # of this disk: no other source helps
                    self._log.error("checkpoint_not_written", error=str(error))
                    await self._drop()
                    break
            else:
                if self._damaged.issuperset(self._hosts.sources()):
                    self._on_no_good_copy()
                    raise NoGoodCopy("no other host has sound rows")
            await asyncio.sleep(self._pause.next_s())

    def _note(self, host: str, failure: _Failed) -> None:
        """Log why a host does not help, once for each reason."""
        reason = str(failure)
        if isinstance(failure, _Damaged):
            self._damaged.add(host)
        else:
            self._damaged.discard(host)
        if self._reasons.get(host) != reason:
            self._reasons[host] = reason
            self._log.warning(
                "checkpoint_not_fetched",
                host=host,
                reason=reason,
                error=str(failure.__cause__ or ""),
                action="the other hosts are asked, and this one again",
            )

    async def _drop(self) -> None:
        """Free the space of what was fetched."""
        with suppress(OSError):  # else the next try says why
            await self._in_thread(partial(drop_incoming, self._files, self._wanted.folder))

    async def _fetch_from(self, host: str) -> Replaced:
        manifest = await self._begin(host)
        keeping: asyncio.Task[None] | None = None
        try:
            await self._check_log_behind(manifest)
            keeping = asyncio.create_task(self._keep_log(manifest.position.index))
            await self._fetch_files(host, manifest)
        finally:
            if keeping is not None:
                keeping.cancel()
            await self._ask_once(
                host, checkpoint_messages.End(self._wanted.shard, manifest.number), 1.0
            )
        self._log.info("checkpoint_fetched", host=host, index=manifest.position.index)
        return Replaced(manifest.log_id, manifest.position)

    # -- the beginning -----------------------------------------------------------------------------

    async def _begin(self, host: str) -> checkpoint_messages.Manifest:
        begin = checkpoint_messages.Begin(self._wanted.shard, self._wanted.log_id, self._at_least)
        answer = await self._ask(host, begin, self._settings.make_s)
        try:
            manifest = checkpoint_messages.decode_manifest(answer)
        except msgspec.MsgspecError as error:
            raise _Failed(f"its manifest is unreadable: {error}") from error
        if manifest.log_id != self._wanted.log_id or manifest.position.index < self._at_least:
            raise _Failed("it gives a checkpoint that was not asked for")
        if not all(_is_plain(file.name) for file in manifest.files):
            raise _Failed("it names a file outside of the folder")
        return manifest

    async def _check_log_behind(self, manifest: checkpoint_messages.Manifest) -> None:
        """Have the leader keep the log behind the checkpoint, unless none is known.

        If it is gone already, only a later checkpoint helps.
        """
        start = await self._start_of_log(manifest.position.index)
        if start > manifest.position.index:
            self._at_least = max(self._at_least, start)
            raise _Failed(f"the leader's log begins at Entry {start} only")

    async def _keep_log(self, index: int) -> None:
        while True:
            await asyncio.sleep(self._settings.keep_s)
            await self._start_of_log(index)

    async def _start_of_log(self, index: int) -> int:
        """The first Entry of the leader's log; 0 if that is not known."""
        leader = self._hosts.leader()
        if leader is None:
            return 0
        keep = checkpoint_messages.Keep(self._wanted.shard, index)
        outcome = await self._ask_once(leader, keep, self._settings.answer_s)
        try:
            return (
                checkpoint_messages.decode_kept(outcome).start if isinstance(outcome, bytes) else 0
            )
        except msgspec.MsgspecError as error:
            self._log.warning("leader_answer_unreadable", host=leader, error=str(error))
            return 0

    # -- files -------------------------------------------------------------------------------------

    async def _fetch_files(self, host: str, manifest: checkpoint_messages.Manifest) -> None:
        """Fetch, check, and make durable. Raises OSError or _OwnFault if this host's disk fails."""
        files, folder, in_thread = self._files, self._wanted.folder, self._in_thread
        incoming = await in_thread(partial(make_incoming, files, folder))
        free = await in_thread(partial(files.free, incoming))
        if free - manifest.size < self._settings.reserve_bytes:
            raise OSError(errno.ENOSPC, f"{manifest.size} bytes would not leave enough space")
        for place, file in enumerate(manifest.files):
            for number in range(1, _TRIES + 1):
                read = partial(checkpoint_messages.Read, self._wanted.shard, manifest.number, place)
                if await self._is_fetched(host, incoming / file.name, file, read):
                    break
                if number == _TRIES:
                    raise _Failed(f"{file.name} is damaged")
        await in_thread(partial(files.sync_folder, incoming))
        try:
            position = await self._check_rows(incoming)
        except (StoreFailed, DamagedRecord) as error:
            raise await self._fault(host, manifest, incoming, error) from error
        if position != manifest.position:
            raise _Failed(f"its rows are of Entry {position.index}")

    async def _fault(
        self,
        host: str,
        manifest: checkpoint_messages.Manifest,
        incoming: Path,
        error: StoreFailed | DamagedRecord,
    ) -> _OwnFault | _Failed:
        """The cause for which fetched rows cannot be read here. Raises OSError, _Failed."""
        if isinstance(error, StoreFailed) and not is_damage(error):
            return _OwnFault(str(error))
        for file in manifest.files:
            target = incoming / file.name
            await self._in_thread(partial(self._files.forget, target))
            if await self._in_thread(partial(self._files.checksum, target)) != file.crc32:
                return _OwnFault(f"{file.name} is read back with other bytes than were written")
        checked = await self._checked_by(host, manifest.number)
        if checked.damage:
            return _Damaged(f"its rows are damaged: {checked.damage}")
        return _Failed("its rows are sound there, but cannot be read here")

    async def _checked_by(self, host: str, number: int) -> checkpoint_messages.Checked:
        """Have a host read all rows of the checkpoint that it gave. Raises _Failed."""
        until_s = self._monotonic_s() + self._settings.check_s
        check = checkpoint_messages.Check(self._wanted.shard, number)
        reason = "it takes too long"
        while self._monotonic_s() < until_s:
            try:
                answer = await self._ask(host, check, self._settings.answer_s, _CHECK_AGAIN)
                checked = checkpoint_messages.decode_checked(answer)
            except (_Failed, msgspec.MsgspecError) as failure:
                reason = str(failure)
                break
            if checked.is_over:
                return checked
            await asyncio.sleep(self._settings.retry_s)
        raise _Failed(
            f"its rows cannot be read here, and it does not say if they are sound: {reason}"
        )

    async def _is_fetched(
        self,
        host: str,
        target: Path,
        file: checkpoint_messages.CheckpointFile,
        read: Callable[[int, int], checkpoint_messages.Read],
    ) -> bool:
        """Fetch a file; True if it is what it should be."""
        files, in_thread = self._files, self._in_thread
        await in_thread(partial(files.remove, target))
        await in_thread(partial(files.write, target, b"", 0))
        parts = self._parts(file.size, read)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._settings.chunks_max):
                    group.create_task(self._fetch_parts(host, target, parts))
        except ExceptionGroup as failures:  # not except*, out of which a group may come again
            raise failures.exceptions[0] from None
        await in_thread(partial(files.sync, target))
        if await in_thread(partial(files.checksum, target)) == file.crc32:
            return True
        self._log.warning("checkpoint_file_damaged", host=host, file=file.name)
        return False

    def _parts(
        self, size: int, read: Callable[[int, int], checkpoint_messages.Read]
    ) -> Iterator[checkpoint_messages.Read]:
        chunk_bytes = self._settings.chunk_bytes
        return (read(at, min(chunk_bytes, size - at)) for at in range(0, size, chunk_bytes))

    async def _fetch_parts(
        self, host: str, target: Path, parts: Iterator[checkpoint_messages.Read]
    ) -> None:
        """Fetch one part after the other; several of these share the iterator."""
        for part in parts:
            data = await self._ask(host, part, self._settings.answer_s)
            if len(data) != part.size:
                raise _Failed(f"{target.name} has other bytes than it should")
            await self._in_thread(partial(self._files.write, target, data, part.offset))

    # -- questions ---------------------------------------------------------------------------------

    async def _ask(
        self,
        host: str,
        request: checkpoint_messages.Request,
        timeout_s: float,
        again: Sequence[str] = _AGAIN,
    ) -> bytes:
        """The answer; asked again while the connection is lost, for a bounded time. Raises
        _Failed."""
        until_s = self._monotonic_s() + self._settings.silence_s
        while True:
            outcome = await self._ask_once(host, request, timeout_s)
            if isinstance(outcome, bytes):
                return outcome
            is_final = isinstance(outcome, Refused) and outcome.reason not in again
            if is_final or self._monotonic_s() >= until_s:
                detail = outcome.detail if isinstance(outcome, Refused) else ""
                raise _Failed(f"{outcome.reason}: {detail}" if detail else outcome.reason)
            await asyncio.sleep(self._settings.retry_s)


def _is_plain(name: str) -> bool:
    """True for the name of a file in the folder itself, other than the mark."""
    return PurePosixPath(name).name == name and not name.startswith(MARK_FILE)
