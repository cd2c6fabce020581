"""The Spark of a benchmark: this machine, or a standalone master with two workers on loopback."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import deltalake
import pyarrow
import pyspark
from pyspark.sql import SparkSession

from spark_jobs.lib.spark import spark_session
from spark_jobs.tests.processes import standalone_cluster

_WORKERS = 2


@contextmanager
def benchmark_session(*, is_standalone: bool, local: str | None = None) -> Iterator[SparkSession]:
    """A session until the block ends, `local` the master without a cluster. Prints the versions."""
    with ExitStack() as stack:
        master = local
        if is_standalone:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-cluster-"))
            master = stack.enter_context(standalone_cluster(Path(folder), workers=_WORKERS))
        session = stack.enter_context(spark_session("benchmark", master))
        machine = session.sparkContext._jvm
        assert machine is not None
        java = machine.System.getProperty("java.version")
        print(
            f"Spark {pyspark.__version__} on {session.sparkContext.master}, "
            f"deltalake {deltalake.__version__}, pyarrow {pyarrow.__version__}, Java {java}, "
            f"Python {platform.python_version()}"
        )
        yield session
