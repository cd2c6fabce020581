"""`holdfast fleet`: queues over several shards."""

from __future__ import annotations

import click

from sqs_api.commands.part_commands import parts, shrink, split


@click.group()
def fleet() -> None:
    """Keep queues in several parts."""


for command in (parts, split, shrink):
    fleet.add_command(command)
