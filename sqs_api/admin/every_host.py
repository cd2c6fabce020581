"""EveryHost: asks all hosts of a fleet for the part that each knows; a single host only itself.

Bodies and answers are msgpack. Hosts that do not answer in time are named.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from cluster.peers.questions import Question, Questions, Said

_WAIT_S = 2.0
_OK = 200

AnswerPart = Callable[[bytes], Awaitable[bytes]]
"""Answers for this host alone."""


class Heard(NamedTuple):
    """The answers of the hosts that could be reached."""

    parts: list[bytes]
    missing: list[str]
    """Names of the others."""
    late: tuple[str, ...] = ()
    """Those of them that are connected and said nothing, not even that they do not know the
    question: they may answer if they are asked once more."""


class EveryHost:
    """Asks for pages, and answers other hosts."""

    def __init__(self, questions: Questions | None = None, *, is_one_machine: bool = False) -> None:
        """`questions` reach the other hosts; None of a single host. On one machine they are its
        workers, over one data folder."""
        self._questions = questions
        self._is_one_machine = is_one_machine
        self._own: dict[str, AnswerPart] = {}
        self._of_folder: set[str] = set()

    def serve(self, action: str, answer: AnswerPart, *, of_folder: bool = False) -> None:
        """Answer an action for this host, also when others ask. An answer `of_folder` is the same
        in all workers of a machine."""
        self._own[action] = answer
        if of_folder and self._is_one_machine:
            self._of_folder.add(action)
        if self._questions is not None:
            self._questions.serve(action, self._said)

    async def _said(self, question: Question) -> Said:
        return Said(_OK, await self._own[question.action](question.body))

    async def ask(
        self,
        action: str,
        body: bytes,
        wait_s: float = _WAIT_S,
        hosts: Iterable[str] | None = None,
    ) -> Heard:
        """The answers of all hosts, or of these, within a time; an error of this host's is
        raised."""
        if self._questions is None or action in self._of_folder:
            return Heard([await self._own[action](body)], [])
        question = Question(action, b"", body)
        asked = self._questions.hosts_of_all_clusters if hosts is None else hosts
        answers = await self._questions.ask_all(asked, question, wait_s)
        parts = [each.body for each in answers.values() if each is not None and each.status == _OK]
        missing = [host for host, each in answers.items() if each is None or each.status != _OK]
        silent = [host for host in missing if answers[host] is None]
        return Heard(parts, missing, tuple(filter(self._questions.is_connected, silent)))
