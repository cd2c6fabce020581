"""One Spark for all tests of the jobs: it takes seconds to start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.node_process import NodeProcess
from spark_jobs.archive.archive_tasks import Small
from spark_jobs.lib.spark import OpenSession, spark_session
from spark_jobs.tests import job_faults as faults
from spark_jobs.tests.job_services import ArchiveJob, FakeService
from spark_jobs.tests.processes import QUICK_SPARK
from storage.lake.table import Lake

os.environ.setdefault("JDK_JAVA_OPTIONS", QUICK_SPARK)
# Executors have our modules without the tests.
cloudpickle.register_pickle_by_value(faults)  # type: ignore[no-untyped-call]


NOTHING = Small(0, 0)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two processors, and four tries for a task."""
    with spark_session("tests", "local[2,4]") as session:
        session.conf.set("spark.sql.shuffle.partitions", "2")
        yield session


@pytest.fixture
def open_session(spark: SparkSession) -> OpenSession:
    return lambda: nullcontext(spark)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path))


@pytest.fixture
def service() -> Iterator[FakeService]:
    with FakeService() as fake:
        yield fake


@pytest.fixture
def job(lake: Lake, service: FakeService, open_session: OpenSession) -> ArchiveJob:
    """It writes the few rows of tests without Spark."""
    return ArchiveJob(lake, service, open_session)


@pytest.fixture
def spark_job(job: ArchiveJob) -> ArchiveJob:
    """The same job, but it writes all rows with Spark."""
    job.small = NOTHING
    return job


@pytest.fixture(params=["here", "spark"])
def either_job(job: ArchiveJob, request: pytest.FixtureRequest) -> ArchiveJob:
    """The job without and with Spark."""
    return request.getfixturevalue("spark_job") if request.param == "spark" else job


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A service in a separate process."""
    node = NodeProcess(tmp_path_factory.mktemp("node")).start()
    yield node
    node.stop()


@pytest.fixture(scope="module")
def sqs(node: NodeProcess) -> Iterator[Boto3Client]:
    client = Boto3Client(node.url, node.credentials)
    yield client
    client.close()
