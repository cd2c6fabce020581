"""The command line of the jobs: `holdfast jobs NAME ...`, or this file given to `spark-submit`.

A job says how far it is on standard error and ends with one line on standard output. Exit status: 0 done, 1 failed (one
line on standard error says why), 2 wrong use. This is the one place of the jobs that reads the environment.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

import click

_FAILED = 1
_WRONG_USE = 2
JOBS = {
    "archive": "spark_jobs.archive.archive",
    "compact": "spark_jobs.archive.compact",
    "dead-letters": "spark_jobs.dead_letters.dead_letters",
    "queue-age": "spark_jobs.ages.queue_age",
    "replay": "spark_jobs.replay.replay",
}
"""Each job's module has its `command`, and is imported only when it is asked for: Spark takes a while."""


class _Jobs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(JOBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = JOBS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = importlib.import_module(module).command
        return command


def _end(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


def main() -> None:
    """Run a job. What ends it early also ends its Spark, and takes back its note among the runs."""
    from spark_jobs.lib.failures import JobFailed
    from spark_jobs.lib.options import Surroundings
    from spark_jobs.lib.spark import SparkUnusable
    from storage.lake import LakeUnusable, ObjectStore

    signal.signal(signal.SIGTERM, _end)
    variables = dict(os.environ)
    # This one names the queue service, and what reads the lake would take it for the object store.
    os.environ.pop("AWS_ENDPOINT_URL", None)
    surroundings = Surroundings(ObjectStore.from_environment(variables), variables)
    jobs = _Jobs(name="jobs", help="Analyse the archive with Spark.")
    try:
        sys.exit(jobs.main(prog_name="holdfast jobs", obj=surroundings, standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        sys.exit(_WRONG_USE)
    except click.ClickException as error:
        _refuse(error.format_message(), _WRONG_USE)
    except (JobFailed, LakeUnusable, SparkUnusable) as error:
        _refuse(str(error), _FAILED)
    except click.Abort:
        sys.exit(_FAILED)


def _refuse(reason: str, status: int) -> NoReturn:
    print(f"holdfast: {' '.join(reason.split())}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
