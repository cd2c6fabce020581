"""One Spark for the whole run."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark_jobs.spark import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A small local Spark that starts fast."""
    os.environ["JDK_JAVA_OPTIONS"] = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    with spark_session("tests", "local[2,4]") as session:
        session.conf.set("spark.sql.shuffle.partitions", "1")
        yield session
