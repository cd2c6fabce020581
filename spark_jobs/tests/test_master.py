"""A wrong Spark master is refused before Java starts."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spark_jobs.ages.queue_age import command
from spark_jobs.lib import master as masters
from spark_jobs.lib import spark
from spark_jobs.lib.job_failures import first_line
from spark_jobs.lib.master import MasterUnreachable, WrongMaster, addresses_of, reach
from spark_jobs.lib.spark import SparkUnusable, spark_session


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AssertionError("a session was begun")

    monkeypatch.setattr(spark, "scratch_folder", refuse)


def closed_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.parametrize(
    ("master", "addresses"),
    [
        ("local", []),
        ("local[*]", []),
        ("local[4]", []),
        ("local[*, 4]", []),
        ("local-cluster[2,1,1024]", []),
        ("yarn", []),
        ("spark://m:7077", [("m", 7077)]),
        ("spark://m-1.lan:7077,[::1]:7078", [("m-1.lan", 7077), ("::1", 7078)]),
        ("k8s://https://api.lan:6443", [("api.lan", 6443)]),
        ("k8s://api.lan", [("api.lan", 443)]),
        ("k8s://http://10.0.0.1", [("10.0.0.1", 80)]),
    ],
)
def test_masters_that_spark_knows(master: str, addresses: list[tuple[str, int]]) -> None:
    assert addresses_of(master) == addresses


@pytest.mark.parametrize(
    "master",
    [
        "",
        "foo",
        "Local",
        "local[0]",
        "local[x]",
        "spark:/m:7077",
        "spark://",
        "spark://m",
        "spark://m:0",
        "spark://m:77077",
        "spark://m:7077,",
        "http://m:8080",
        "k8s://ftp://m:1",
        "mesos://m:5050",
    ],
)
def test_other_texts_are_wrong_use(master: str, tmp_path: Path) -> None:
    with pytest.raises(WrongMaster):
        addresses_of(master)

    said = CliRunner().invoke(command, ["--lake", str(tmp_path), "--master", master])

    assert (said.exit_code, "is no Spark master" in said.output) == (2, True)


@pytest.mark.usefixtures("no_java")
def test_a_master_that_cannot_be_reached_is_said_at_once() -> None:
    master = f"spark://127.0.0.1:{closed_port()}"

    with pytest.raises(SparkUnusable) as refused, spark_session("tests", master):
        pass

    assert str(refused.value) == f"cannot reach the Spark master {master}: Connection refused"


@pytest.mark.usefixtures("no_java")
def test_yarn_without_its_configuration_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(SparkUnusable, match="HADOOP_CONF_DIR"), spark_session("tests", "yarn"):
        pass


def test_one_of_several_masters_suffices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masters, "SILENCE_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        reach(f"spark://127.0.0.1:{closed_port()},127.0.0.1:{port}")


def test_the_web_page_of_a_master_is_not_the_master() -> None:
    def answer() -> None:
        with listening.accept()[0] as stream:
            stream.sendall(b"HTTP/1.1 400 Illegal character CNTL=0x0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(MasterUnreachable, match="a web server answers there"):
            reach(f"spark://127.0.0.1:{listening.getsockname()[1]}")


def test_a_lookup_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = threading.Event()

    def hang(*_: Any, **__: Any) -> None:
        is_over.wait()
        raise OSError

    monkeypatch.setattr(socket, "create_connection", hang)
    monkeypatch.setattr(masters, "PATIENCE_S", 0.01)

    with pytest.raises(MasterUnreachable, match=r"no answer in 0\.01 s"):
        reach("spark://m:7077")
    is_over.set()


def test_of_an_error_in_java_its_own_words_are_said() -> None:
    text = "An error occurred while calling None.org.x.Y.\n: org.x.Z: it is full\n\tat org.x"

    assert first_line(RuntimeError(text)) == "org.x.Z: it is full"
    assert first_line(RuntimeError()) == "RuntimeError"
