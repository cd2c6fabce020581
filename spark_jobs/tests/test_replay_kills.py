"""A replay that is killed without warning sends every message, and hardly any twice."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.facade import Members, counts, create_fifo_queue, receive
from compat_tests.node_process import NodeProcess, environment
from spark_jobs.tests import replaying
from storage.lake.table import Lake

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parent.parent.parent
ENTRIES_MAX = 10


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


@pytest.fixture
def start(node: NodeProcess, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a module of ours with the credentials of the service; ends it with the test."""
    started: list[subprocess.Popen[str]] = []
    variables = {
        **environment(),
        "AWS_ACCESS_KEY_ID": node.credentials.access_key_id,
        "AWS_SECRET_ACCESS_KEY": node.credentials.secret_access_key,
        "AWS_DEFAULT_REGION": node.credentials.region,
        "AWS_ENDPOINT_URL": node.url,
    }

    def start_module(module: str, *arguments: str) -> subprocess.Popen[str]:
        with (tmp_path / "stderr").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                env=variables,
                cwd=CHECKOUT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        started.append(process)
        return process

    yield start_module
    for process in started:
        process.kill()
        process.communicate(timeout=60)


def arn_of(sqs: Boto3Client, url: str) -> str:
    answer = sqs.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["QueueArn"])
    return str(answer["Attributes"]["QueueArn"])


def take_all(sqs: Boto3Client, url: str) -> list[Members]:
    taken: list[Members] = []
    while messages := receive(sqs, url, MessageSystemAttributeNames=["All"]):
        taken += messages
        for message in messages:
            sqs.call("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return taken


def wait_for_more(in_queue: Callable[[], int], count: int, process: subprocess.Popen[str]) -> None:
    """Wait until the process has sent this many messages."""
    goal = in_queue() + count
    deadline_s = time.monotonic() + 300
    while in_queue() < goal:
        assert process.poll() is None, "it had ended by itself"
        assert time.monotonic() < deadline_s
        time.sleep(0.01)  # asking keeps a processor busy


def finished(process: subprocess.Popen[str]) -> str:
    """Its standard output; it must succeed."""
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return said


@pytest.mark.parametrize("is_fifo", [False, True], ids=["standard", "fifo"])
@pytest.mark.parametrize("seed", [1])
def test_killed_replay_repeats_at_most_the_request_in_flight(
    sqs: Boto3Client,
    lake: Lake,
    start: Callable[..., subprocess.Popen[str]],
    is_fifo: bool,
    seed: int,
) -> None:
    chance = random.Random(seed)
    name = f"killed-{seed}"
    url = (
        create_fifo_queue(sqs, name)
        if is_fifo
        else str(sqs.call("CreateQueue", QueueName=name)["QueueUrl"])
    )
    count, kills = 400, 4

    def run() -> subprocess.Popen[str]:
        arn = arn_of(sqs, url)
        return start("spark_jobs.tests.replaying", lake.url, url, arn, str(count))

    def in_queue() -> int:
        return counts(sqs, url)[0]

    def repeating() -> int:
        """Messages in the queue of which the ledger does not know."""
        return in_queue() - len(replaying.remembered(lake))

    for _ in range(kills):
        before = 0 if is_fifo else repeating()
        process = run()
        wait_for_more(in_queue, chance.randrange(1, 60), process)
        time.sleep(chance.random() * 0.02)
        process.kill()
        process.wait()

        assert before <= repeating() <= before + ENTRIES_MAX
    finished(run())
    sent_by_then = in_queue()
    finished(run())

    taken = take_all(sqs, url)
    assert len(taken) == sent_by_then
    assert {each["Body"] for each in taken} == {f"m-{position}" for position in range(count)}
    assert len(lake.list(replaying.FOLDER)) == 1
    if is_fifo:
        groups: dict[str, list[int]] = {}
        for each in taken:
            group = groups.setdefault(each["Attributes"]["MessageGroupId"], [])
            group.append(int(each["Body"][2:]))
        assert groups == {f"g-{number}": list(range(number, count, 5)) for number in range(5)}
    else:
        assert len(taken) <= count + kills * ENTRIES_MAX
