"""Command line of the jobs: `holdfast jobs NAME ...`, or `spark-submit` with this file.

A job reports progress on standard error and ends with one line on standard output. Exit status: 0
done, 1 failed or left something undone (a line on standard error gives the reason), 2 wrong use.
Only this module reads the environment.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Mapping
from types import FrameType
from typing import NoReturn

import click

_FAILED = 1
_WRONG_USE = 2
JOBS = {
    "archive": "spark_jobs.archive.archive_job",
    "compact": "spark_jobs.archive.compact",
    "dead-letters": "spark_jobs.dead_letters.dead_letters_job",
    "queue-age": "spark_jobs.ages.queue_age",
    "replay": "spark_jobs.replay.replay",
}
"""Modules with a `command`, imported on use since Spark takes a while to import."""


class _Jobs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(JOBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = JOBS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = importlib.import_module(module).command
        return command


def _exit(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


def main() -> None:
    """Run a job. SIGTERM exits cleanly: Spark stops, and the run removes its file in LAKE/runs."""
    from spark_jobs.lib.job_failures import JobFailed
    from spark_jobs.lib.job_options import Environment
    from spark_jobs.lib.scratch import remove_leftovers
    from spark_jobs.lib.spark import SparkUnusable
    from storage.lake.table import LakeUnusable, ObjectStore

    signal.signal(signal.SIGTERM, _exit)
    variables = dict(os.environ)
    # It names the queue service, but S3 clients would take it for the object store.
    os.environ.pop("AWS_ENDPOINT_URL", None)
    remove_leftovers()
    environment = Environment(ObjectStore.from_environment(variables), _umask(variables), variables)
    jobs = _Jobs(
        name="jobs",
        help="Run a Spark job over the lake.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    try:
        sys.exit(jobs.main(prog_name="holdfast jobs", obj=environment, standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        sys.exit(_WRONG_USE)
    except click.ClickException as error:
        _refuse(error.format_message(), _WRONG_USE)
    except (JobFailed, LakeUnusable, SparkUnusable) as error:
        _refuse(str(error), _FAILED)
    except click.Abort:
        sys.exit(_FAILED)


def _umask(variables: Mapping[str, str]) -> int:
    """The lake's umask, which the process gets, too: delta-rs and Java know no other."""
    from storage.lake.lake_permissions import OWNER_ONLY, UMASK_VARIABLE, read_umask

    try:
        umask = read_umask(variables.get(UMASK_VARIABLE) or OWNER_ONLY)
    except ValueError as error:
        _refuse(f"{UMASK_VARIABLE}: {error}", _WRONG_USE)
    os.umask(umask)
    return umask


def _refuse(reason: str, status: int) -> NoReturn:
    print(f"holdfast: {' '.join(reason.split())}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
