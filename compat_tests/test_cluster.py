"""`make cluster`: three hosts, etcd and a balancer on this machine, as a user starts and stops
them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import boto3
import pytest
import yaml
from botocore.exceptions import BotoCoreError, ClientError

from compat_tests.chromium import Tab
from compat_tests.clients.boto3_client import Boto3Client, connect
from compat_tests.cluster_process import HOSTS, MEMBERS, Cluster, ClusterProcess
from compat_tests.facade import eventually
from compat_tests.node_process import run_command

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "COMPAT_ENDPOINT" in os.environ, reason="aimed at a service that this suite did not start"
    ),
]
ACCOUNT = "000000000000"
DEPLOY = Path(__file__).parent.parent / "deploy"
RULES = DEPLOY / "prometheus/etcd.rules.yml"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    folder = tmp_path_factory.mktemp("cluster")
    process = ClusterProcess(folder, "--aws-waits", "off")
    yield process.start()
    process.close()


def _status(cluster: ClusterProcess, *options: str) -> subprocess.CompletedProcess[str]:
    return run_command("cluster", "status", "--data", str(cluster.data / "a"), *options)


def test_the_status_shows_etcd_and_names_what_is_wrong(cluster: ClusterProcess) -> None:
    found: dict[str, Any] = {}

    def has_no_problem() -> bool:
        nonlocal found
        found = json.loads(_status(cluster, "--json").stdout)
        return not found["problems"]

    cluster.parts.wait_until_healthy(cluster.credentials)
    eventually(has_no_problem)  # after the start leaders still move, one by one
    assert [host["replication"] for host in found["hosts"]] == ["sync"] * 3
    urls = [cluster.parts.etcd_url(member) for member in MEMBERS]
    assert sorted(member["endpoint"] for member in found["etcd"]) == sorted(urls)
    assert [member["is_leader"] for member in found["etcd"]].count(True) == 1
    assert all(0 < each["database_bytes"] < each["quota_bytes"] for each in found["etcd"])
    for member in MEMBERS[:2]:
        cluster.parts.signal(member, signal.SIGSTOP)

    ill = _status(cluster)

    for member in MEMBERS[:2]:
        cluster.parts.signal(member, signal.SIGCONT)
    assert ill.returncode == 1
    assert f"problem: a majority of etcd is away: {', '.join(sorted(urls[:2]))}" in ill.stdout
    assert ill.stdout.count("not reached") == 2
    for member in MEMBERS:
        cluster.parts.wait_until_ready(member)
    cluster.parts.wait_until_healthy(cluster.credentials)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_operators_see_and_repair_at_any_host(cluster: ClusterProcess) -> None:
    client = Boto3Client(cluster.url, cluster.credentials)
    client.call("CreateQueue", QueueName="dead")
    arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:dead"
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    client.call("CreateQueue", QueueName="source", Attributes={"RedrivePolicy": policy})
    url = client.call("GetQueueUrl", QueueName="dead")["QueueUrl"]
    for body in "abc":
        client.call("SendMessage", QueueUrl=url, MessageBody=body)
    client.close()

    for number, host in enumerate(HOSTS):
        (queue,) = said(cluster, host, "queues", "list", "--search", "dead")
        assert (queue["visible"], queue["sources"]) == (3 - number, ["source"])
        page = said(cluster, host, "messages", "browse", "dead")
        first = page["messages"][0]
        assert first["body"] == "abc"[number]
        chosen = (str(first["sequence"]), "--to", "source")
        assert said(cluster, host, "redrive", "plan", "dead", *chosen)["refused"] == {}
        moved = said(cluster, host, "redrive", "start", "dead", *chosen, "--wait")
        assert (moved["status"], moved["moved"]) == ("COMPLETED", 1)
    histories = [said(cluster, host, "redrive", "list", "dead") for host in HOSTS]
    assert len(histories[0]) == 3
    assert histories == [histories[0]] * 3


def test_failures_are_counted_exactly_at_any_host_and_after_a_failover(
    cluster: ClusterProcess,
) -> None:
    client = Boto3Client(cluster.url, cluster.credentials)
    letters = client.call("CreateQueue", QueueName="failed")["QueueUrl"]
    policy = {"deadLetterTargetArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:failed"}
    attributes = {"RedrivePolicy": json.dumps({**policy, "maxReceiveCount": 1})}
    client.call("CreateQueue", QueueName="failing", Attributes=attributes)
    for at in range(30):
        body = json.dumps({"id": at, "error": {"type": "AAB"[at % 3]}})
        client.call("SendMessage", QueueUrl=letters, MessageBody=body)

    def counted(host: str) -> dict[str, int]:
        found: Any = {}

        def is_exact() -> bool:
            found.update(said(cluster, host, "queues", "failures", "failed"))
            return bool(found["is_exact"])

        eventually(is_exact)
        return {each["signs"][0]["value"]: each["messages"] for each in found["failures"]}

    before = [counted(host) for host in HOSTS]
    said(cluster, HOSTS[0], "mark", "deploy 4711")
    for host in HOSTS:  # one of them led the queue
        pid = cluster.parts.signal(host, signal.SIGKILL)
        cluster.parts.wait_for_another(host, pid)
        cluster.parts.wait_until_ready(host)
        eventually(lambda: _status(cluster).returncode == 0)
    client.call("SendMessage", QueueUrl=letters, MessageBody='{"error": {"type": "C"}}')
    after = [counted(host) for host in HOSTS]
    marks = [said(cluster, host, "mark")[0]["text"] for host in HOSTS]
    client.close()

    assert before == [{"A": 20, "B": 10}] * 3
    assert after == [{"A": 20, "B": 10, "C": 1}] * 3
    assert marks == ["deploy 4711"] * 3


def test_the_console_shows_the_hosts_and_drains_one(browser: Any, cluster: ClusterProcess) -> None:
    key = cluster.exports()
    tab = Tab(browser, cluster.parts.cluster().hosts["a"])
    tab.go("/hosts")
    tab.sign_in(key["AWS_ACCESS_KEY_ID"], key["AWS_SECRET_ACCESS_KEY"])
    hosts = tab.page.get_by_role("region", name="Hosts").locator("tbody tr")
    drawn = tab.page.get_by_role("region", name="Who leads and who follows")
    drawn.get_by_text("leads", exact=True).first.wait_for()
    drawn.get_by_text("follows", exact=True).first.wait_for()
    tab.page.get_by_role("button", name="Drain b").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Drain", exact=True).click()
    hosts.nth(1).get_by_text("drained").wait_for()
    drained = json.loads(_status(cluster, "--json").stdout)["hosts"]
    tab.page.get_by_role("button", name="Undrain b").click()
    tab.page.get_by_role("button", name="Drain b").wait_for()
    undrained = json.loads(_status(cluster, "--json").stdout)["hosts"]

    assert [host["is_drained"] for host in drained] == [False, True, False]
    assert [host["is_drained"] for host in undrained] == [False, False, False]
    assert tab.faults == []


def said(cluster: ClusterProcess, host: str, *arguments: str) -> Any:
    """The answer of a host to a command."""
    url = cluster.parts.cluster().hosts[host]
    done = run_command(*arguments, "--url", url, "--json", variables=cluster.exports())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["managed", "keyed"])
def test_letters_move_under_a_key_that_was_just_made(cluster: ClusterProcess, name: str) -> None:
    """A leader has no data key under it yet, and needs one for letters of a managed queue."""
    key = {"KmsMasterKeyId": f"alias/{name}"}
    retries = {"total_max_attempts": 10, "mode": "standard"}
    urls = cluster.parts.cluster().hosts.values()
    clients = [connect(url, cluster.credentials, retries=retries) for url in urls]
    made = run_command("keys", "--config", str(cluster.data / "a.toml"), "add", name)
    assert made.returncode == 0, made.stderr
    for shard in range(3):
        dead = clients[0].create_queue(QueueName=f"{name}-{shard}-dead", Attributes=key)["QueueUrl"]
        arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{name}-{shard}-dead"
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
        attributes = {"RedrivePolicy": policy, "VisibilityTimeout": "0"}
        attributes |= key if name == "keyed" else {}
        source = clients[0].create_queue(QueueName=f"{name}-{shard}", Attributes=attributes)
        for client in clients:  # a receive shows that the host knows the key, and makes no data key
            eventually(partial(_is_taken, client.receive_message, QueueUrl=dead))
        for body in "abc":
            clients[0].send_message(QueueUrl=source["QueueUrl"], MessageBody=body)

        for _ in range(2):
            received: list[str] = []
            eventually(partial(_has_died, clients[0], source["QueueUrl"], dead, received))
            assert sorted(received) == ["a", "b", "c"]
            clients[0].start_message_move_task(SourceArn=arn)
            eventually(partial(_has_moved, clients[0], arn, 3))


def _is_taken(call: Callable[..., Any], **members: Any) -> bool:
    with suppress(ClientError):
        call(**members)
        return True
    return False


def _has_died(client: Any, source: str, dead: str, received: list[str]) -> bool:
    """Receive messages; true once three are in the dead-letter queue."""
    found = client.receive_message(QueueUrl=source, MaxNumberOfMessages=10).get("Messages", [])
    received += [message["Body"] for message in found]
    counts = client.get_queue_attributes(QueueUrl=dead, AttributeNames=["All"])["Attributes"]
    return bool(counts["ApproximateNumberOfMessages"] == "3")


def _has_moved(client: Any, arn: str, count: int) -> bool:
    task = client.list_message_move_tasks(SourceArn=arn, MaxResults=1)["Results"][0]
    assert task["Status"] in ("RUNNING", "COMPLETED"), task
    return bool(task["ApproximateNumberOfMessagesMoved"] == count and task["Status"] != "RUNNING")


@pytest.mark.parametrize("name", ["b", "etcd-2"])
def test_a_killed_process_is_reported_and_started_again(cluster: ClusterProcess, name: str) -> None:
    pid = cluster.parts.signal(name, signal.SIGKILL)

    cluster.parts.wait_for_another(name, pid)
    cluster.parts.wait_until_ready(name)

    assert f"holdfast: {name} ended with signal SIGKILL and is started again" in cluster.log_tail()


_UNTIL_KILLED = """
import json, sys, time
def seen(): return json.load(open(sys.argv[1]))["processes"]
before = seen()
def changed(now): return any(now.get(host, before.get(host)) != before.get(host) for host in "abc")
while not changed(seen()): time.sleep(0.05)
sys.exit(7)
"""


def test_hosts_are_killed_while_a_command_runs(cluster: ClusterProcess) -> None:
    killing = [
        "-m",
        "compat_tests.faults.kill_hosts",
        "--data",
        str(cluster.data),
        "--every",
        "0.1",
    ]
    waiting = [sys.executable, "-c", _UNTIL_KILLED, str(cluster.data / "running.json")]

    done = subprocess.run(
        [sys.executable, *killing, "--", *waiting],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 7, done.stderr
    assert re.search(r"^[1-9]\d* hosts were killed", done.stdout, re.MULTILINE)
    for host in HOSTS:
        cluster.parts.wait_until_ready(host)


def test_alerts_of_etcd_are_on_metrics_that_it_has(cluster: ClusterProcess) -> None:
    page = f"{cluster.parts.etcd_url('etcd-1')}/metrics"
    with urlopen(page, context=cluster.parts.etcd_tls()) as answer:
        page = answer.read().decode()
    (group,) = yaml.safe_load(RULES.read_text())["groups"]

    for rule in group["rules"]:
        for name in re.findall(r"\b(etcd_\w+)", rule["expr"]):
            assert re.search(rf"^{name}(?:\{{.*\}})? ", page, re.MULTILINE), rule["alert"]


def test_rules_and_dashboards_of_a_cluster_are_on_metrics_that_it_has(
    cluster: ClusterProcess,
) -> None:
    pages: list[str] = []
    for url in cluster.parts.cluster().hosts.values():
        with urlopen(f"{url}/_holdfast/metrics") as answer:
            pages.append(answer.read().decode())
    rules = (DEPLOY / "prometheus/cluster.rules.yml").read_text()
    board = (DEPLOY / "grafana/operators.json").read_text()

    named = set(re.findall(r"\bholdfast_(?:replica|peer|outbox)_\w+", rules + board))
    assert len(named) > 8
    for name in named:
        assert any(re.search(rf"^{name}\b.* ", page, re.MULTILINE) for page in pages), name


def test_owners_read_the_metrics_of_all_hosts_from_any(cluster: ClusterProcess) -> None:
    hosts = cluster.parts.cluster().hosts
    client = Boto3Client(hosts["a"], cluster.credentials)
    made = [  # of several shards, which several hosts lead
        client.call("CreateQueue", QueueName=f"metered-{number}")["QueueUrl"] for number in range(6)
    ]
    credentials = cluster.credentials
    key = {
        "AWS_ACCESS_KEY_ID": credentials.access_key_id,
        "AWS_SECRET_ACCESS_KEY": credentials.secret_access_key,
        "AWS_DEFAULT_REGION": credentials.region,
    }
    sent = r'^holdfast_queue_messages_sent_total\{.*queue="metered-\d",.*\} [1-9]\d*\.0$'

    for url in hosts.values():
        printed = ""

        def has_all(url: str = url) -> bool:
            nonlocal printed
            for queue in made:  # a host that begins to lead counts from zero
                client.call("SendMessage", QueueUrl=queue, MessageBody="x")
            printed = run_command("metrics", "--url", url, variables=key).stdout
            return len(re.findall(sent, printed, re.MULTILINE)) == 6

        eventually(has_all)
        assert "\nholdfast_hosts_missing 0.0\n" in printed
    client.close()


def _are_counted(cloudwatch: Any, queue: str, now: datetime) -> bool:
    """True if one message was sent to the queue and two receives were empty."""
    expected = {"NumberOfMessagesSent": 1, "NumberOfEmptyReceives": 2}
    sums = {
        metric: sum(
            point["Sum"]
            for point in cloudwatch.get_metric_statistics(
                Namespace="AWS/SQS",
                MetricName=metric,
                Dimensions=[{"Name": "QueueName", "Value": queue}],
                StartTime=now - timedelta(minutes=10),
                EndTime=now + timedelta(minutes=5),
                Period=60,
                Statistics=["Sum"],
            )["Datapoints"]
        )
        for metric in expected
    }
    return sums == expected


def test_any_host_answers_cloudwatchs_calls_for_all(cluster: ClusterProcess) -> None:
    hosts = cluster.parts.cluster().hosts
    credentials = cluster.credentials
    for number, url in enumerate(hosts.values()):
        client = Boto3Client(url, credentials)
        made = client.call("CreateQueue", QueueName=f"watched-{number}")["QueueUrl"]
        client.call("SendMessage", QueueUrl=made, MessageBody="x")
        for other in hosts.values():  # each host counts those that it answers
            asked = Boto3Client(other, credentials)
            asked.call("ReceiveMessage", QueueUrl=made)
            asked.close()
        client.close()
    now = datetime.now(UTC)

    for url in hosts.values():
        cloudwatch = boto3.client(
            "cloudwatch",
            endpoint_url=url,
            region_name=credentials.region,
            aws_access_key_id=credentials.access_key_id,
            aws_secret_access_key=credentials.secret_access_key,
        )
        for number in range(len(hosts)):  # a host whose connection broke is left out
            eventually(partial(_are_counted, cloudwatch, f"watched-{number}", now))
        cloudwatch.close()


@contextmanager
def _with_one_host(cluster: ClusterProcess, name: str) -> Iterator[tuple[Any, list[str]]]:
    """Stop all hosts but the leader of the first shard. Yields a client of it, which waits three
    seconds, and a queue of each shard."""
    cluster.parts.wait_until_healthy(cluster.credentials)
    leader = cluster.parts.leader()
    url = cluster.parts.cluster().hosts[leader]
    client = connect(url, cluster.credentials, read_timeout=3)
    hidden = {"VisibilityTimeout": "1"}  # a receive that is not answered may hide its message
    with closing(connect(url, cluster.credentials)) as patient:
        made = [
            patient.create_queue(QueueName=f"{name}-{shard}", Attributes=hidden)["QueueUrl"]
            for shard in range(3)
        ]
    others = [host for host in HOSTS if host != leader]
    for host in others:
        cluster.parts.signal(host, signal.SIGSTOP)
    try:
        yield client, made
    finally:
        for host in others:
            cluster.parts.signal(host, signal.SIGCONT)
        client.close()
        cluster.parts.wait_until_all_are_ready()


def _send_to_all(client: Any, urls: list[str]) -> dict[str, str]:
    """Send a message to each queue at once. Returns the acknowledged message ids by queue."""

    def send(url: str) -> str:
        try:
            return str(client.send_message(QueueUrl=url, MessageBody="x")["MessageId"])
        except (BotoCoreError, ClientError):
            return ""

    with ThreadPoolExecutor(len(urls)) as pool:
        return {url: kept for url, kept in zip(urls, pool.map(send, urls), strict=True) if kept}


def test_a_leader_without_other_hosts_acknowledges_nothing(cluster: ClusterProcess) -> None:
    with _with_one_host(cluster, "sync") as (client, urls):
        assert _send_to_all(client, urls) == {}


@pytest.fixture(scope="module")
def restarted(cluster: ClusterProcess) -> Iterator[tuple[Cluster, ClusterProcess]]:
    """The cluster before a stop, and started again with `--replication async`."""
    before = cluster.parts.cluster()
    client = Boto3Client(before.hosts["a"], cluster.credentials)
    client.call("CreateQueue", QueueName="kept")
    client.close()
    cluster.stop()
    assert all(map(is_gone, before.processes.values()))
    assert not (cluster.data / "running.json").exists()
    again = ClusterProcess(
        cluster.data.parent,
        "--replication",
        "async",
        "--aws-waits",
        "off",
        credentials=cluster.credentials,
    )
    yield before, again.start()
    again.close()


def test_a_stop_ends_every_process_and_a_second_start_finds_everything(
    restarted: tuple[Cluster, ClusterProcess],
) -> None:
    before, cluster = restarted
    client = Boto3Client(before.hosts["b"], cluster.credentials)
    assert cluster.parts.cluster().hosts == before.hosts
    assert len(client.call("ListQueues", QueueNamePrefix="kept")["QueueUrls"]) == 1
    client.close()


def test_with_async_it_acknowledges_sends_and_gives_out_nothing(
    restarted: tuple[Cluster, ClusterProcess],
) -> None:
    _, cluster = restarted
    with _with_one_host(cluster, "async") as (client, urls):
        acknowledged = _send_to_all(client, urls)
        assert acknowledged
        for url in acknowledged:
            with pytest.raises((BotoCoreError, ClientError)):
                client.receive_message(QueueUrl=url)

    client = Boto3Client(cluster.parts.cluster().hosts["c"], cluster.credentials)
    for url, message_id in acknowledged.items():
        found = client.call("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20)["Messages"]
        assert [message["MessageId"] for message in found] == [message_id]
    client.close()
