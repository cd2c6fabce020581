"""Each command that a document names is one, with options that it has."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from sqs_api.commands.command_line import cli

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = (
    "README.md",
    "CHANGELOG.md",
    "auth/GUIDE.md",
    "deploy/runbook.md",
    "spark_jobs/README.md",
    "sqs_api/OPERATING.md",
    "visibility/POLICIES.md",
)
_BLOCK = re.compile(r"```\w*\n(.*?)```", re.DOTALL)
_IN_BLOCK = re.compile(r"(?:^|\$ |\(|&& )(?:holdfast|hf) (.*)", re.MULTILINE)
_IN_PROSE = re.compile(r"(?:holdfast|hf) (.*)")
_END = re.compile(r"\s(?:>|&&|\||#)|[;)]")
_LEFT_OUT = ("...", "…")


def commands_of(text: str) -> Iterator[str]:
    """The words after `holdfast` in blocks and between backticks, without those for a shell."""
    for block in _BLOCK.findall(text):
        yield from _IN_BLOCK.findall(block.replace("\\\n", " "))
    for code in re.findall(r"`([^`]+)`", _BLOCK.sub("", text)):
        found = _IN_PROSE.fullmatch(" ".join(code.split()))
        if found is not None:
            yield found[1]


def check(words: list[str]) -> None:
    """Raises UsageError for what the command does not take; `…` is left out."""
    command: click.Command = cli
    while isinstance(command, click.Group):
        group, context = command, click.Context(command)
        parser = group.make_parser(context)
        parser.allow_interspersed_args = False
        _, words, _ = parser.parse_args(words)
        if not words:
            return
        first, *words = words
        names = first.split("|")  # `redrive plan|start`
        for name in names:
            found = group.get_command(context, name)
            if found is None:
                raise click.UsageError(f"{group.name} has no command {name}")
            command = found
    context = click.Context(command, resilient_parsing=True)
    given = [word for word in words if word not in _LEFT_OUT]
    _, left, _ = command.make_parser(context).parse_args(given)
    if left and command.name != "jobs":
        raise click.UsageError(f"{command.name} takes no {' '.join(left)}")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_commands_of_a_document_are_commands(document: str) -> None:
    found = list(commands_of((ROOT / document).read_text()))
    wrong = []
    for text in found:
        words = shlex.split(_END.split(text)[0], comments=True)
        if words[:1] in (["jobs"], ["="]):  # jobs have options of their own; a client of boto3
            continue
        try:
            check(words)
        except click.UsageError as refusal:
            wrong.append(f"holdfast {text}: {refusal.format_message()}")

    assert found
    assert wrong == []


@pytest.mark.parametrize(
    "text", ["queues lists", "queues show orders --jsn", "fleet undo a b", "users --dat x list"]
)
def test_what_is_no_command_is_found(text: str) -> None:
    with pytest.raises(click.UsageError):
        check(text.split())
