"""Backups of a fleet of several clusters: each cluster's part is made by a host of its own, on its
own disk, as the host that was asked for the backup tells it.

    begin    make the folder and flush the rows
    rows     copy them as of now, while all hosts of the fleet hold still; may be repeated
    records  read the fleet's records, after the rows of all clusters
    keep     write the backup out
    made     says if that is done; it takes minutes for many GiB
    discard  remove it: the backup failed elsewhere

A part whose backup does not come back is discarded. Hosts ask each other; no client can.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from typing_extensions import override

from cluster.catalog.catalog_records import PREFIX as CATALOG
from cluster.coordination.coordination import Coordination, Unavailable
from cluster.copies.backup import BackupDraft, CopiedStore, discard_made
from cluster.fleet.copied_fleet import copied_of_fleet
from cluster.peers.questions import Question, Questions, Said
from sqs_api.admin.quiesce import LedShard
from sqs_api.admin.row_copies import Disturbed, RowCopies
from storage.copies.manifest import NO_FLEET, BackupRefused, Manifest, PartOfFleet

PART = "BackupPart"
"""No page has it, so it is for other hosts only."""
_BEGIN_S = 300.0
_STEP_S = 30.0
_MADE_S = 10.0
"""Time that an answer to `made` waits for the end."""
_SILENCE_S = 600.0
"""Time from `begin` to `keep`, at most."""
_LOST_MAX = 6
"""Answers about the end that may be lost one after the other."""


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request of the host that makes the backup; `token` is the backup's."""

    name: str
    token: str
    target: str = ""
    led: list[LedShard] = []


class Done(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer. A text in `refused` or `disturbed` says why the step was not done."""

    refused: str = ""
    disturbed: str = ""
    last_stamp_ms: int = 0
    queues: str = ""
    """Digest of the copied catalog."""
    is_made: bool = False


class BackupPoint:
    """The point in time of a backup, see `backup_points.py`: copies the rows of shards, by the
    names of their folders, and all else."""

    cluster = ""
    """Name of the cluster; empty on a single host."""
    part = NO_FLEET
    """Once it is copied."""

    def folder(self, target: Path) -> Path:
        """The folder in which this host makes its part of the backup. Raises OSError."""
        return target

    async def copy(self, draft: BackupDraft, stores: Mapping[int, tuple[str, CopiedStore]]) -> int:
        """Returns the latest time of a copied row, 0 if that is now. Raises BackupRefused."""
        raise NotImplementedError

    async def finish(self) -> None:
        """Wait for what other hosts make; this one's is done. Raises BackupRefused."""

    async def discard(self) -> None:
        """Have other hosts remove what they made: it failed here."""


MakePart = Callable[[Path, BackupPoint], Coroutine[Any, Any, Manifest]]


def part_folder(target: Path, number: int) -> Path:
    """The folder of a cluster's part of a fleet's backup, in one that is made. Raises OSError."""
    target.mkdir(mode=0o700, exist_ok=True)
    return target / f"cluster-{number}"


async def read_records(root: Coordination, part: PartOfFleet) -> dict[str, bytes]:
    """The records that a backup has, among all of the fleet. Raises BackupRefused."""
    found = await root.read_all()
    if isinstance(found, Unavailable):
        raise BackupRefused(f"cannot read the cluster's records: {found.reason}")
    return copied_of_fleet(found.records, part)


def digest_of_queues(records: Mapping[str, bytes]) -> str:
    """The same for equal catalogs only."""
    own = [(key, value) for key, value in sorted(records.items()) if key.startswith(CATALOG)]
    return sha256(msgspec.msgpack.encode(own)).hexdigest()


class _Part(BackupPoint):
    """A part under way on this host."""

    def __init__(self, cluster: str, number: int, token: str) -> None:
        self.cluster = cluster
        self.part = PartOfFleet(token, number)
        self.target = Path()
        self.names: dict[int, str] = {}
        self.records: dict[str, bytes] = {}
        self.last_stamp_ms = 0
        self.draft: asyncio.Future[BackupDraft] = asyncio.get_running_loop().create_future()
        self.kept = asyncio.Event()
        self.making: asyncio.Task[Manifest] | None = None

    @override
    async def copy(self, draft: BackupDraft, stores: Mapping[int, tuple[str, CopiedStore]]) -> int:
        """Wait while the steps copy all."""
        self.names = {number: name for number, (name, _) in stores.items()}
        self.draft.set_result(draft)
        try:
            async with asyncio.timeout(_SILENCE_S):
                await self.kept.wait()
        except TimeoutError:
            raise BackupRefused("the host that makes the fleet's backup does not answer") from None
        await asyncio.to_thread(draft.put_records, self.records)
        return self.last_stamp_ms


class OwnPart:
    """Makes this cluster's part of backups that hosts of other clusters are asked for."""

    def __init__(self, cluster: str, number: int, copies: RowCopies, root: Coordination) -> None:
        self._cluster = cluster
        self._number = number
        self._copies = copies
        self._root = root
        self._make: MakePart | None = None
        self._part: _Part | None = None

    def serve(self, questions: Questions, make: MakePart) -> None:
        """Answer from now on; `make` writes a backup of this host's shards."""
        self._make = make
        questions.serve(PART, self._answer)

    async def _answer(self, question: Question) -> Said:
        step = msgspec.json.decode(question.body, type=Step)
        try:
            done = await self._do(step)
        except Disturbed as disturbed:
            done = Done(disturbed=str(disturbed))
        except BackupRefused as refusal:
            done = Done(refused=str(refusal))
        return Said(200, msgspec.json.encode(done))

    async def _do(self, step: Step) -> Done:
        if step.name == "begin":
            return await self._begin(step)
        part = self._part
        if part is None or part.part.fleet != step.token or part.making is None:
            raise BackupRefused("its host was started again, or makes another backup")
        if step.name == "rows":
            led = {each.shard: each for each in step.led}
            part.last_stamp_ms = await self._copies.copy(part.draft.result(), part.names, led)
            return Done(last_stamp_ms=part.last_stamp_ms)
        if step.name == "records":
            part.records = await read_records(self._root, part.part)
            return Done(queues=digest_of_queues(part.records))
        if step.name == "keep":
            part.kept.set()
            return Done()
        if step.name == "made":
            return await _made(part.making)
        return await self._discard(part, part.making)

    async def _begin(self, step: Step) -> Done:
        assert self._make is not None
        part = _Part(self._cluster, self._number, step.token)
        try:
            part.target = part_folder(Path(step.target), self._number)
        except OSError as error:
            raise BackupRefused(f"cannot make {step.target}: {error.strerror}") from error
        making = asyncio.create_task(self._make(part.target, part))
        futures: list[asyncio.Future[Any]] = [making, part.draft]
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        if making.done():
            making.result()
        self._part, part.making = part, making
        return Done()

    async def _discard(self, part: _Part, making: asyncio.Task[Manifest]) -> Done:
        self._part = None
        making.cancel()
        await asyncio.wait([making])
        await asyncio.to_thread(discard_made, part.target)
        return Done()


async def _made(making: asyncio.Task[Manifest]) -> Done:
    await asyncio.wait([making], timeout=_MADE_S)
    if not making.done():
        return Done()
    making.result()
    return Done(is_made=True)


class OtherPart:
    """Another cluster's part, as the host that makes the backup asks for it."""

    def __init__(
        self, questions: Questions, number: int, hosts: Sequence[str], shards: range, token: str
    ) -> None:
        """One of `hosts` makes it, the first that can."""
        self.shards = shards
        self.hosts = hosts
        self._questions = questions
        self._number = number
        self._token = token
        self._host = ""

    async def begin(self, target: Path) -> None:
        """Raises BackupRefused."""
        reason = "no host of it answers"
        for host in self.hosts:
            try:
                done = await self._ask(Step("begin", self._token, str(target)), _BEGIN_S, host)
            except BackupRefused as refusal:
                reason = str(refusal)
                continue
            if done is not None:
                self._host = host
                return
        raise BackupRefused(f"cluster {self._number}: {reason}")

    async def rows(self, led: Mapping[int, LedShard]) -> int:
        """Returns the latest time of a copied row. Raises BackupRefused, Disturbed."""
        own = [led[shard] for shard in self.shards]
        return (await self._do(Step("rows", self._token, led=own))).last_stamp_ms

    async def records(self) -> str:
        """Returns the digest of the copied catalog. Raises BackupRefused, Disturbed."""
        return (await self._do(Step("records", self._token))).queues

    async def keep(self) -> None:
        """Raises BackupRefused."""
        try:
            await self._do(Step("keep", self._token))
        except Disturbed as disturbed:
            raise BackupRefused(str(disturbed)) from disturbed

    async def finish(self) -> None:
        """Wait until it is on disk. Raises BackupRefused."""
        lost = 0
        while lost < _LOST_MAX:
            done = await self._ask(Step("made", self._token), _STEP_S, self._host)
            if done is None:
                lost += 1
                await asyncio.sleep(_MADE_S)
                continue
            if done.is_made:
                return
            lost = 0
        raise BackupRefused(f"cluster {self._number}: host {self._host} does not answer any more")

    async def discard(self) -> None:
        """Remove it, if its host answers."""
        if self._host:
            with suppress(BackupRefused):
                await self._ask(Step("discard", self._token), _STEP_S, self._host)

    async def _do(self, step: Step) -> Done:
        done = await self._ask(step, _STEP_S, self._host)
        if done is None:
            raise Disturbed(f"host {self._host} does not answer")
        if done.disturbed:
            raise Disturbed(done.disturbed)
        return done

    async def _ask(self, step: Step, wait_s: float, host: str) -> Done | None:
        """The answer of a host, None if it does not answer. Raises BackupRefused."""
        question = Question(PART, b"", msgspec.json.encode(step))
        said = await self._questions.ask(host, question, wait_s)
        if said is None:
            return None
        if said.status != 200:
            raise BackupRefused(f"host {host} has another version")
        done = msgspec.json.decode(said.body, type=Done)
        if done.refused:
            raise BackupRefused(f"cluster {self._number}, host {host}: {done.refused}")
        return done
