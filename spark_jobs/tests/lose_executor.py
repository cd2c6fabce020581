"""Archives a lake on a cluster whose executors are killed at their first task.

python -m spark_jobs.tests.lose_executor LAKE MASTER UMASK
"""

from __future__ import annotations

import os
import sys

from pyspark import cloudpickle

from spark_jobs.archive.archive_job import archive
from spark_jobs.archive.archive_tasks import Small
from spark_jobs.archive.runs import Run
from spark_jobs.lib.spark import spark_session
from spark_jobs.tests import job_faults as faults


def main(url: str, master: str, umask: str) -> None:
    """End with status 0 when the lake is archived."""
    cloudpickle.register_pickle_by_value(faults)  # type: ignore[no-untyped-call]
    os.umask(int(umask, 8))
    lake = faults.ExecutorKilledOnce(url, umask=int(umask, 8))
    with Run(lake, "archive") as run:
        archive(lake, run, lambda: spark_session("archive", master), {}, sys.exit, Small(0, 0))


if __name__ == "__main__":
    main(*sys.argv[1:])
