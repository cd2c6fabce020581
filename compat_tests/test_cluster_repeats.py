"""A change that is sent again to another host of a cluster is made once."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import pytest

from compat_tests import pages
from compat_tests.clients.boto3_client import connect
from compat_tests.cluster_process import HOSTS, ClusterProcess
from compat_tests.console_world import count, make_dead_letters
from compat_tests.facade import eventually

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    variables = {"HOLDFAST_AWS_WAITS": "off"}
    process = ClusterProcess(tmp_path_factory.mktemp("repeats"), variables=variables)
    yield process.start()
    process.close()


def repeated(cluster: ClusterProcess, page: str, content: object) -> list[object]:
    """The answers of all hosts to one change: those of the others are to repetitions."""
    answers: list[object] = []
    begun_s = time.monotonic()
    for host in HOSTS:
        more = {"Idempotency-Key": page.replace("/", "-")}
        if answers:  # a host may have started half a second before
            more["Idempotency-Age"] = str(math.ceil((time.monotonic() - begun_s) * 1000))
        url = cluster.parts.cluster().hosts[host]
        status, answer = pages.ask(url, cluster.credentials, f"api/{page}", content, more)
        assert status == 200, answer
        answers.append(answer)
    return answers


def test_messages_are_sent_and_redriven_once(cluster: ClusterProcess) -> None:
    client = connect(cluster.url, cluster.credentials)
    for number in range(3):  # of several shards
        name = f"sent-{number}"
        client.create_queue(QueueName=name)
        first, *others = repeated(cluster, f"queues/{name}/messages", {"body": "x"})

        assert others == [first, first]
        assert count(client, name) == 1

    make_dead_letters(client, "letters", "a", "b")
    first, *others = repeated(cluster, "queues/letters-dead/redrives", {"filter": {"older_s": 0}})
    assert others == [first, first]
    eventually(lambda: count(client, "letters") == 2)
