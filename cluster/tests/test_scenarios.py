"""Stories of queues as transcripts: `scenarios/*.txt`, commands and their answers.

    # A comment.
    send q a delay=2
    ----
    sent 1

Each block is run in order on one shard whose clock stands still until `time` moves it.
`HOLDFAST_REWRITE=1` writes the real answers into the files, to be reviewed as a diff before a
commit. `compat_tests/transcripts.py` runs them against a real service, too.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cluster.tests.interpreter import Interpreter

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))
REWRITE = bool(os.environ.get("HOLDFAST_REWRITE"))


def replayed(transcript: str) -> str:
    """The transcript with the answers that really came."""
    interpreter = Interpreter()
    blocks: list[str] = []
    for block in transcript.strip().split("\n\n"):
        lines = block.split("\n")
        commands = lines[: lines.index("----")] if "----" in lines else lines
        answers = [
            answer
            for command in commands
            if not command.startswith("#")
            for answer in interpreter.run(command)
        ]
        comments_only = all(command.startswith("#") for command in commands)
        blocks.append("\n".join(commands if comments_only else [*commands, "----", *answers]))
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("file", SCENARIOS, ids=lambda file: str(file.stem))
def test_story_goes_as_it_is_told(file: Path) -> None:
    told = file.read_text()

    came = replayed(told)

    if REWRITE:
        file.write_text(came)
    assert came == told or REWRITE


def test_there_are_stories() -> None:
    assert SCENARIOS
