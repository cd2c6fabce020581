"""The command line of `holdfast`. An error is one line on standard error.

Exit status: 0 done, 1 failed or found something, 2 wrong use, 3 a disk takes no writes.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata

import click

from auth.native import native
from sqs_api.commands.archive_command import archive, jobs
from sqs_api.commands.audit_command import audit
from sqs_api.commands.backup_command import backup
from sqs_api.commands.cluster_command import cluster
from sqs_api.commands.command_options import Failed
from sqs_api.commands.credentials_command import credentials
from sqs_api.commands.fleet_command import fleet
from sqs_api.commands.folders import convert, restore, salvage, verify
from sqs_api.commands.keys_command import keys
from sqs_api.commands.lake_export_command import lake_export
from sqs_api.commands.mark_command import mark
from sqs_api.commands.messages_command import messages
from sqs_api.commands.policy_command import policy
from sqs_api.commands.queues_command import queues
from sqs_api.commands.redrive import redrive
from sqs_api.commands.remove_queue import delete_queue, purge_queue
from sqs_api.commands.restore_queue import restore_queue
from sqs_api.commands.sdk_model_command import sdk_model_command
from sqs_api.commands.serve import check_config, example_config, serve, serve_worker
from sqs_api.commands.usage_command import metrics, usage
from sqs_api.commands.users import users

_FAILED = 1
_WRONG_USE = 2
_DISK_REFUSED = 3


_PATH = "Python alone" if native is None else "with its native module"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="holdfast", message=f"%(prog)s %(version)s, {_PATH}")
def cli() -> None:
    """Holdfast: a queue service that speaks Amazon SQS."""


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(metadata.version("holdfast"))


for command in (
    serve,
    serve_worker,
    check_config,
    example_config,
    credentials,
    users,
    usage,
    metrics,
    policy,
    keys,
    delete_queue,
    purge_queue,
    restore_queue,
    backup,
    restore,
    verify,
    salvage,
    convert,
    jobs,
    lake_export,
    cluster,
    fleet,
    queues,
    messages,
    redrive,
    fleet,
    audit,
    archive,
    mark,
    sdk_model_command,
):
    cli.add_command(command)


def run() -> None:
    """Run the command of this process, and exit."""
    os.umask(0o077)  # messages and keys are for their owner only
    try:
        sys.exit(cli(prog_name="holdfast", standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError as error:
        _say(error.format_message())
        sys.exit(_WRONG_USE)
    except click.Abort:
        sys.exit(_FAILED)
    except Exception as error:
        _end_if_refused_by_disk(error)
        if isinstance(error, click.ClickException):
            _say(f"holdfast: {error.format_message()}")
            sys.exit(_FAILED if isinstance(error, Failed) else _WRONG_USE)
        raise


def _end_if_refused_by_disk(error: Exception) -> None:
    """Say that a disk takes no writes, and end, if that is the reason."""
    from storage.files.refusing_disk import disk_refusal

    reason = disk_refusal(error)
    if reason is None:
        return
    text = f": {error.format_message()}" if isinstance(error, click.ClickException) else ""
    _say(f"holdfast: {reason}{text}")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # drop what it did not take
    sys.exit(_DISK_REFUSED)


def _say(text: str) -> None:
    """Say it on standard error, which decides no exit status: it may be on a full disk."""
    try:
        click.echo(text, err=True)
    except OSError:  # drop the text, or its flush at the end fails again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
