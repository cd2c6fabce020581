"""Backups of a machine with several workers: the first one makes them, of the shards of all.

All workers hold still meanwhile (`sqs_api/admin/quiesce.py`), and each makes the checkpoints of its
own shards, into the folder that the first one names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
from typing_extensions import override

from cluster.clock import Entropy
from cluster.copies.backup import BackupDraft, CopiedStore
from cluster.peers.questions import Question, Questions, Said
from sqs_api.admin.backup_page import WantedBackup
from sqs_api.admin.backups import Backups
from sqs_api.admin.cluster_parts import BackupPoint
from sqs_api.admin.quiesce import HOLD_S, Hold, Quiesce
from storage.copies.manifest import BackupRefused, Manifest
from storage.engines.store import StoreFailed

_STEP, _MAKE = "WorkerBackupStep", "MakeWorkersBackup"
"""No page has them, so they are for other workers only."""
_MADE_S = 24 * 3600.0
"""Time for a backup."""


class _Step(msgspec.Struct, frozen=True):
    """A request of the worker that makes the backup."""

    name: str
    token: str = ""
    shard: int = 0
    folder: str = ""


class AllShards(NamedTuple):
    """The shards of all workers, as a backup copies them."""

    folders: Mapping[int, Path]
    store_of: Callable[[int], CopiedStore]


class StoreElsewhere(CopiedStore):
    """The store of another worker's shard."""

    def __init__(self, ask: Callable[[_Step], Awaitable[None]], shard: int) -> None:
        """Belongs to the running event loop."""
        self._ask = ask
        self._shard = shard
        self._loop = asyncio.get_running_loop()

    @override
    def flush(self) -> None:
        self._do(_Step("flush", shard=self._shard))

    @override
    def checkpoint(self, folder: Path) -> None:
        self._do(_Step("checkpoint", shard=self._shard, folder=str(folder)))

    def _do(self, step: _Step) -> None:
        async def asked() -> None:
            await self._ask(step)

        asyncio.run_coroutine_threadsafe(asked(), self._loop).result()


class WorkersPoint(BackupPoint):
    """See `BackupPoint`; and this worker's part in a backup."""

    def __init__(
        self,
        questions: Questions,
        quiesce: Quiesce,
        store_of: Callable[[int], CopiedStore],
        entropy: Entropy,
    ) -> None:
        """`store_of` gives the stores of this worker's shards."""
        self._questions = questions
        self._hold = Hold(quiesce)
        self._store_of = store_of
        self._entropy = entropy
        self.stop = self._hold.stop
        """Ends a hold."""
        self.maker_lost = self._hold.give_up
        """Goes on at once: the worker that makes backups has ended."""
        questions.serve(_STEP, self._answer)

    def elsewhere(self, shard: int, worker: str) -> StoreElsewhere:
        """The store of a shard that another worker has."""

        async def ask(step: _Step) -> None:
            said = await self._questions.ask(worker, _question(_STEP, step), HOLD_S)
            if said is None or said.status != 200:
                why = "does not answer" if said is None else said.body.decode()
                raise StoreFailed(f"{worker} {why}; try again")

        return StoreElsewhere(ask, shard)

    @override
    async def copy(self, draft: BackupDraft, stores: Mapping[int, tuple[str, CopiedStore]]) -> int:
        token = f"{self._entropy.bits128():032x}"
        try:
            await self._all("hold", token)
            checkpoints = {name: store.checkpoint for name, store in stores.values()}
            await asyncio.to_thread(draft.take, checkpoints)
        except BaseException:
            await self._ask_all("release", token)
            raise
        await self._all("release", token)
        return 0

    async def _all(self, name: str, token: str) -> None:
        """Raises BackupRefused unless all workers do it."""
        answers = await self._ask_all(name, token)
        if not all(said is not None and said.status == 200 for said in answers.values()):
            raise BackupRefused("a worker did not hold still until all was copied; try again")

    async def _ask_all(self, name: str, token: str) -> dict[str, Said | None]:
        question = _question(_STEP, _Step(name, token))
        return await self._questions.ask_all(self._questions.hosts, question, HOLD_S)

    async def _answer(self, question: Question) -> Said:
        step = msgspec.json.decode(question.body, type=_Step)
        try:
            return Said(200 if await self._done(step) else 409, b"is busy")
        except StoreFailed as error:
            return Said(500, str(error).encode())

    async def _done(self, step: _Step) -> bool:
        if step.name == "hold":
            return await self._hold.begin(step.token)
        if step.name == "release":
            return await self._hold.end(step.token)
        store = self._store_of(step.shard)
        if step.name == "flush":
            await asyncio.to_thread(store.flush)
        else:
            await asyncio.to_thread(store.checkpoint, Path(step.folder))
        return True


class BackupsOfFirst:
    """Has the first worker make a backup; `Backups` of the others."""

    def __init__(self, questions: Questions, first: str) -> None:
        self._questions = questions
        self._first = first

    async def make(self, target: Path, *, with_master_key: bool) -> Manifest:
        """Have the first worker write a backup to `target`. Raises BackupRefused."""
        question = _question(_MAKE, WantedBackup(str(target), with_master_key))
        said = await self._questions.ask(self._first, question, _MADE_S)
        if said is None:
            raise BackupRefused(f"{self._first} does not answer; try again")
        if said.status != 200:
            raise BackupRefused(said.body.decode())
        return msgspec.json.decode(said.body, type=Manifest)


def serve_backups(questions: Questions, backups: Backups) -> None:
    """Make the backups that other workers are asked for."""

    async def answer(question: Question) -> Said:
        wanted = msgspec.json.decode(question.body, type=WantedBackup)
        try:
            made = await backups.make(Path(wanted.target), with_master_key=wanted.with_master_key)
        except BackupRefused as refusal:
            return Said(409, str(refusal).encode())
        return Said(200, msgspec.json.encode(made))

    questions.serve(_MAKE, answer)


def _question(action: str, content: msgspec.Struct) -> Question:
    return Question(action, b"", msgspec.json.encode(content))
