"""`make fleet` as its user meets it: two clusters and a gateway behind one endpoint, and what goes
on while one of them, or etcd, is away."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from compat_tests.chromium import expect
from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.cluster_process import GATEWAY, HOSTS, MEMBERS, SECOND
from compat_tests.facade import ClientError, eventually, receive_count, refusal
from compat_tests.fleet_letters import CARD, TAX, Letters, signed_in
from compat_tests.fleet_process import FleetProcess
from compat_tests.node_process import run_command
from compat_tests.pages import ask
from compat_tests.test_cloudwatch import client_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "COMPAT_ENDPOINT" in os.environ, reason="aimed at a service that this suite did not start"
    ),
]


def made(client: Boto3Client, name: str, **attributes: str) -> str:
    url = client.call("CreateQueue", QueueName=name, Attributes=attributes)["QueueUrl"]
    return str(url)


def url_of(client: Boto3Client, name: str) -> str:
    return str(client.call("GetQueueUrl", QueueName=name)["QueueUrl"])


def arn_of(client: Boto3Client, url: str) -> str:
    asked = client.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["QueueArn"])
    return str(asked["Attributes"]["QueueArn"])


def bodies(client: Boto3Client, url: str, **options: Any) -> list[str]:
    answer = client.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10, **options)
    return [message["Body"] for message in answer.get("Messages", [])]


def test_every_host_serves_the_queues_of_all_clusters(fleet: FleetProcess) -> None:
    names = (*HOSTS, *SECOND, GATEWAY)
    clients = {name: fleet.client(name) for name in names}
    for number in range(12):
        made(clients[names[number % 7]], f"q{number}")
    for number in range(12):
        for name, client in clients.items():
            url = url_of(client, f"q{number}")
            client.call("SendMessage", QueueUrl=url, MessageBody=f"{number} {name}")
    for number in range(12):
        reader = clients[names[(number + 3) % 7]]
        found: set[str] = set()
        for _ in range(7):
            found |= set(bodies(reader, url_of(reader, f"q{number}")))
        assert found == {f"{number} {name}" for name in names}

    clusters = fleet.status("d")["clusters"]
    assert [each["number"] for each in clusters] == [1, 2]
    assert [[shard["shard"] for shard in each["shards"]] for each in clusters] == [
        [0, 1, 2],
        [3, 4, 5],
    ]
    queues = [sum(shard["queues"] for shard in each["shards"]) for each in clusters]
    assert sum(queues) == 12
    assert min(queues) >= 3, "both clusters get some"
    assert [each["name"] for each in fleet.status("a")["gateways"]] == [GATEWAY]


def test_any_host_shows_and_drains_the_hosts_of_all_clusters(fleet: FleetProcess) -> None:
    def said(name: str, page: str, given: dict[str, Any] | None = None) -> Any:
        status, answer = ask(fleet.parts.cluster().hosts[name], fleet.credentials, page, given)
        return answer if status == 200 else status

    def drained() -> list[str]:
        hosts = said("d", "api/cluster")["hosts"]
        return [each["name"] for each in hosts if each["is_drained"]]

    seen = said("a", "api/cluster?cluster=2")
    assert (seen["number"], [each["name"] for each in seen["hosts"]]) == (2, [*SECOND])
    assert seen["host"] in SECOND
    assert said("a", "api/cluster?cluster=3") == 404
    assert said(GATEWAY, "api/cluster") == {"cluster": None, "is_gateway": True}

    assert said("a", "api/cluster/drain", {"host": "e", "drained": True}) != 400
    eventually(lambda: drained() == ["e"])
    said("a", "api/cluster/drain", {"host": "e", "drained": False})
    eventually(lambda: drained() == [])


def test_dead_letters_and_redrives_go_between_clusters(fleet: FleetProcess) -> None:
    gateway, host = fleet.client(GATEWAY), fleet.client("e")
    for number in range(8):
        letters = made(gateway, f"letters{number}")
        policy = {"deadLetterTargetArn": arn_of(gateway, letters), "maxReceiveCount": 1}
        made(gateway, f"source{number}", RedrivePolicy=json.dumps(policy))
        source = url_of(host, f"source{number}")
        host.call("SendMessage", QueueUrl=source, MessageBody=f"spent {number}")
        for _ in range(2):
            bodies(host, source, VisibilityTimeout=0)
    for number in range(8):
        letters = url_of(gateway, f"letters{number}")
        assert bodies(gateway, letters, WaitTimeSeconds=20, VisibilityTimeout=0) == [
            f"spent {number}"
        ]
        gateway.call("StartMessageMoveTask", SourceArn=arn_of(gateway, letters))
    for number in range(8):
        source = url_of(host, f"source{number}")
        assert bodies(host, source, WaitTimeSeconds=20) == [f"spent {number}"]
    shards = {
        shard["shard"]: shard["queues"]
        for each in fleet.status("a")["clusters"]
        for shard in each["shards"]
    }
    assert sum(shards.values()) >= 16


def test_a_redrive_of_a_queue_in_both_clusters_survives_its_leaders(fleet: FleetProcess) -> None:
    """One task, started through the gateway; hosts of both clusters are restarted meanwhile."""
    gateway, host = fleet.client(GATEWAY), fleet.client("a")
    letters, rescued = made(gateway, "shared-letters"), made(gateway, "rescued")
    policy = {"deadLetterTargetArn": arn_of(gateway, letters), "maxReceiveCount": 1}
    made(gateway, "shared-source", RedrivePolicy=json.dumps(policy))
    place = ("--data", str(fleet.data / "a"))
    for change in (("split", "--parts", "4"), ("move", "--part", "16", "--shard", "4")):
        action, *options = change
        done = run_command("fleet", action, "shared-letters", *options, "--json", *place)
        assert done.returncode == 0, done.stderr
    parts = json.loads(done.stdout)["parts"]
    shards = [part["shard"] for part in parts]
    assert min(shards) < 3 <= max(shards), "in both clusters"
    sent = [f"{number}" for number in range(200)]
    for begin in range(0, 200, 10):
        entries = [{"Id": body, "MessageBody": body} for body in sent[begin : begin + 10]]
        gateway.call("SendMessageBatch", QueueUrl=letters, Entries=entries)
    source = arn_of(gateway, letters)

    gateway.call(
        "StartMessageMoveTask",
        SourceArn=source,
        DestinationArn=arn_of(gateway, rescued),
        MaxNumberOfMessagesPerSecond=20,
    )
    fleet.restart("b")
    fleet.restart("e")

    def task(client: Boto3Client) -> dict[str, Any]:
        answer = client.call("ListMessageMoveTasks", SourceArn=source)
        return dict(answer["Results"][0])

    eventually(lambda: task(gateway)["Status"] == "COMPLETED")
    seen = task(host)
    assert seen["ApproximateNumberOfMessagesMoved"] == 200
    assert seen["ApproximateNumberOfMessagesToMove"] == 200
    found: list[str] = []
    while some := bodies(gateway, rescued, WaitTimeSeconds=2, VisibilityTimeout=3600):
        found += some
    assert sorted(found) == sorted(sent), "each once"


def test_the_failure_inbox_and_its_redrive_survive_kill_9_of_their_leader(
    browser: Any, fleet: FleetProcess
) -> None:
    """First with a second host of the cluster away, so that nobody can lead: the page says so."""
    letters = Letters(fleet)
    leader, second, third = letters.hosts()
    inbox = signed_in(browser, fleet, letters.host, "/queues/inbox-letters")
    hosts = signed_in(browser, fleet, third, "/hosts")
    inbox.see("All 180 messages, 2 failures.")
    letters.redrive("Tax", len(TAX))
    eventually(lambda: letters.latest_redrive()["moved"] > 0)

    with fleet.parts.not_starting(fleet.pid):
        fleet.parts.signal(leader, signal.SIGKILL)
        with fleet.stopped(second):
            inbox.see("The failures cannot be read: no host that leads inbox-letters answers now.")
            expect(inbox.page.get_by_role("article", name="Card")).to_be_visible()  # as it was
        named = hosts.page.get_by_role("cell", name=leader, exact=True)
        rows = hosts.page.get_by_role("region", name="Hosts").get_by_role("row")
        killed = rows.filter(has=named)
        killed.get_by_text("away").wait_for()
        inbox.page.get_by_role("alert").first.wait_for(state="detached")
        inbox.page.get_by_role("article", name="Card").get_by_text(
            "60", exact=True
        ).first.wait_for()
    inbox.see("All 60 messages, 1 failure.")

    assert letters.counts() == {"Card": len(CARD)}
    redrive = letters.latest_redrive()
    assert (redrive["status"], redrive["moved"]) == ("COMPLETED", len(TAX))
    inbox.go("/queues/inbox-letters/redrive")
    inbox.see("120 of 120")
    assert letters.rescued() == sorted(TAX), "each once"
    killed.get_by_text("runs").wait_for()
    for place in ("/dead-letters", "/queues"):
        hosts.go(place)
        row = hosts.page.get_by_role("row", name="inbox-letters").first
        row.get_by_text("60", exact=True).first.wait_for()
    assert (inbox.faults, hosts.faults) == ([], [])
    eventually(lambda: not fleet.seen_by(letters.host)["problems"])


def test_any_host_shows_usage_metrics_and_changes_of_all_clusters(fleet: FleetProcess) -> None:
    names = [f"measured{number}" for number in range(8)]
    clients = {host: fleet.client(host) for host in ("a", "e")}
    for number, name in enumerate(names):
        client = clients["ae"[number % 2]]
        url = made(client, name)
        client.call("SendMessage", QueueUrl=url, MessageBody="x")
        client.call("TagQueue", QueueUrl=url, Tags={"team": "t"})

    def said(host: str, page: str) -> tuple[str, Any]:
        status, answer = ask(fleet.parts.cluster().hosts[host], fleet.credentials, page)
        assert status == 200, answer
        return json.dumps(answer), answer

    gateway = fleet.client(GATEWAY)
    for name in names:
        gateway.call("SendMessage", QueueUrl=url_of(gateway, name), MessageBody="x")
    fleet.restart(GATEWAY)
    status, refusal = ask(fleet.parts.cluster().hosts[GATEWAY], fleet.credentials, "archive")
    assert (status, refusal["error"].split(",")[0]) == (409, "This is a gateway")

    def has_all_once(host: str) -> bool:
        rows = said(host, "usage")[1]["rows"]
        by_queue = {row["queue"].rpartition(":")[2]: row["requests"] for row in rows}
        return [by_queue.get(name) for name in names] == [2] * len(names)

    for host in clients:
        eventually(lambda host=host: has_all_once(host))  # type: ignore[misc]
        usage, lines = said(host, "usage"), said(host, "api/audit?limit=100")
        assert [name for name in names if name not in usage[0]] == []
        assert [name for name in names if name not in lines[0]] == []
        assert (usage[1]["hosts"], usage[1]["missing"]) == ([*HOSTS, *SECOND], [])
        metrics = client_of(fleet.parts.cluster().hosts[host], fleet.credentials)

        def are_listed(metrics: Any = metrics) -> bool:
            pages = metrics.get_paginator("list_metrics").paginate(Namespace="AWS/SQS")
            found = {each["Dimensions"][0]["Value"] for page in pages for each in page["Metrics"]}
            return found >= set(names)

        eventually(are_listed)
        metrics.close()
    with fleet.stopped(*SECOND):
        usage = said("a", "usage")
        assert "measured0" in usage[0]
        assert usage[1]["missing"] == list(SECOND)


def test_a_cluster_that_is_away_costs_only_its_queues(fleet: FleetProcess) -> None:
    gateway, host = fleet.client(GATEWAY), fleet.client("a")
    for number in range(6):
        made(gateway, f"before{number}")
    with fleet.stopped(*SECOND):
        eventually(lambda: len(fleet.seen_by("a")["problems"]) >= 3)
        for number in range(6):
            made(gateway if number % 2 else host, f"beside{number}")
        fleet.restart(GATEWAY)
        fleet.restart("b")
        for number in range(6):
            url = url_of(gateway, f"beside{number}")
            gateway.call("SendMessage", QueueUrl=url, MessageBody="x")
            assert bodies(host, url_of(host, f"beside{number}")) == ["x"]
        made(fleet.client(GATEWAY), "after")
    eventually(lambda: not fleet.seen_by("a")["problems"])
    for number in range(6):
        url = url_of(gateway, f"before{number}")
        gateway.call("SendMessage", QueueUrl=url, MessageBody="y")
        assert bodies(gateway, url, WaitTimeSeconds=20) == ["y"]


def test_a_gateway_that_stood_still_knows_what_changed_meanwhile(fleet: FleetProcess) -> None:
    """Its next requests may be read before the news of its watch."""
    gateway, host = fleet.client(GATEWAY), fleet.client("a")
    gone = made(gateway, "made-anew")
    with ThreadPoolExecutor(16) as pool:
        with fleet.stopped(GATEWAY):
            urls = [made(host, f"meanwhile{number}") for number in range(8)]
            sent = [
                pool.submit(gateway.call, "SendMessage", QueueUrl=url, MessageBody="x")
                for url in urls
            ]
            host.call("DeleteQueue", QueueUrl=gone)
            anew = pool.submit(made, gateway, "made-anew")
            eventually(lambda: anew.running() and all(each.running() for each in sent))
        for each in sent:
            assert each.result()["MessageId"]
        host.call("SendMessage", QueueUrl=anew.result(), MessageBody="x")


def test_a_gateway_starts_and_serves_without_etcd(fleet: FleetProcess) -> None:
    gateway = fleet.client(GATEWAY)
    urls = [made(gateway, f"lasting{number}") for number in range(6)]
    table = fleet.data / GATEWAY / "records" / "catalog.table"
    eventually(lambda: b"lasting5" in table.read_bytes())
    eventually(lambda: (fleet.data / GATEWAY / "spare-blocks.json").exists())
    with fleet.stopped(*MEMBERS):
        fleet.restart(GATEWAY)
        for url in urls:
            gateway.call("SendMessage", QueueUrl=url, MessageBody="z")
            assert bodies(gateway, url, WaitTimeSeconds=20) == ["z"]
    for member in MEMBERS:
        fleet.parts.wait_until_ready(member)
    eventually(lambda: GATEWAY in [each["name"] for each in fleet.seen_by("a")["gateways"]])
    made(gateway, "later")


def test_a_gateway_without_etcd_finds_queues_that_changed_since(fleet: FleetProcess) -> None:
    """It starts from a table of before the changes, while etcd is away; the clusters know them."""
    gateway, host = fleet.client(GATEWAY), fleet.client("a")
    in_parts = {
        "FifoQueue": "true",
        "DeduplicationScope": "messageGroup",
        "FifoThroughputLimit": "perMessageGroupId",
    }
    plain, given_up, anew = (made(gateway, name) for name in ("roams", "given-up", "anew"))
    ordered = made(gateway, "roams.fifo", **in_parts)

    def send_in_order(client: Boto3Client, body: str) -> dict[str, Any]:
        options = {"MessageGroupId": "g", "MessageDeduplicationId": body}
        return dict(client.call("SendMessage", QueueUrl=ordered, MessageBody=body, **options))

    gateway.call("SendMessage", QueueUrl=plain, MessageBody="before")
    first = send_in_order(gateway, "1")
    table = fleet.data / GATEWAY / "records" / "catalog.table"
    eventually(lambda: b"roams.fifo" in table.read_bytes())
    eventually(lambda: (fleet.data / GATEWAY / "spare-blocks.json").exists())
    with fleet.stopped(GATEWAY):
        for name in ("roams", "roams.fifo"):
            (part,) = fleet.parts_of(name)
            to = (part["shard"] + 3) % 6  # of the other cluster
            place = ("--shard", str(to), "--data", str(fleet.data / "a"))
            done = run_command("fleet", "move", name, *place)
            assert done.returncode == 0, done.stderr
        eventually(lambda: [part["visible"] for part in fleet.parts_of("roams")] == [1, 0])
        host.call("DeleteQueue", QueueUrl=given_up)
        host.call("DeleteQueue", QueueUrl=anew)
        made(host, "anew", VisibilityTimeout="7")
        with fleet.stopped(*MEMBERS):
            fleet.restart(GATEWAY)
            gateway.call("SendMessage", QueueUrl=plain, MessageBody="after")
            found = receive_count(gateway, plain, 2)
            assert {each["Body"] for each in found} == {"before", "after"}
            entries = [
                {"Id": str(place), "ReceiptHandle": each["ReceiptHandle"]}
                for place, each in enumerate(found)
            ]
            deleted = gateway.call("DeleteMessageBatch", QueueUrl=plain, Entries=entries)
            assert len(deleted["Successful"]) == 2

            assert send_in_order(gateway, "1")["MessageId"] == first["MessageId"]
            send_in_order(gateway, "2")
            order: list[str] = []
            while len(order) < 2:
                (each,) = gateway.call("ReceiveMessage", QueueUrl=ordered, WaitTimeSeconds=20)[
                    "Messages"
                ]
                order.append(each["Body"])
                gateway.call("DeleteMessage", QueueUrl=ordered, ReceiptHandle=each["ReceiptHandle"])
            assert order == ["1", "2"]

            # This was sealed for the queue that had the name before: the client tries again.
            refused = refusal(gateway, "SendMessage", QueueUrl=anew, MessageBody="x")
            assert refused.status == 503
            gateway.call("SendMessage", QueueUrl=anew, MessageBody="x")
            assert bodies(gateway, anew, WaitTimeSeconds=20) == ["x"]
            refused = refusal(gateway, "SendMessage", QueueUrl=given_up, MessageBody="x")
            assert refused.code == "AWS.SimpleQueueService.NonExistentQueue"
            # Others may have made these since, and etcd cannot be asked.
            for url in (given_up, f"{fleet.url}/000000000000/later-still"):
                assert refusal(gateway, "SendMessage", QueueUrl=url, MessageBody="x").status == 503
    for member in MEMBERS:
        fleet.parts.wait_until_ready(member)

    def is_made() -> bool:
        """503 while the gateway has not reached etcd again."""
        try:
            made(gateway, "later-still")
        except ClientError as error:
            if error.status != 503:
                raise
            return False
        return True

    eventually(is_made)
    assert bodies(gateway, plain) == []
