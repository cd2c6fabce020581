"""A worker holds still for a backup no longer than the worker that makes it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from cluster.peers.questions import Answer, Question
from cluster.tests.virtual_time import CountingEntropy, virtual
from sqs_api.workers.worker_backups import WorkersPoint


class _Served:
    """See `Questions`: keeps what is served."""

    answer: Answer

    def serve(self, action: str, answer: Answer) -> None:
        self.answer = answer


def _step(name: str, token: str) -> Question:
    return Question("", b"", f'{{"name": "{name}", "token": "{token}"}}'.encode())


@virtual
async def test_a_worker_goes_on_at_once_when_the_one_that_makes_the_backup_ends() -> None:
    questions: Any = _Served()
    nobody: Any = None
    held: list[bool] = []

    @asynccontextmanager
    async def quiesce() -> AsyncIterator[None]:
        held.append(True)
        yield
        held.clear()

    point = WorkersPoint(questions, quiesce, nobody, CountingEntropy())
    point.maker_lost()  # nothing is held
    assert (await questions.answer(_step("hold", "one"))).status == 200
    assert held
    assert (await questions.answer(_step("hold", "other"))).status == 409

    point.maker_lost()
    await asyncio.sleep(0.1)
    assert not held
    assert (await questions.answer(_step("release", "one"))).status == 409, "it went on before"
    assert (await questions.answer(_step("hold", "other"))).status == 200
    assert (await questions.answer(_step("release", "other"))).status == 200
    await point.stop()
