"""Messages that leave their queues reach the lake, in spite of failures, and are then forgotten."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import boto3
import pytest
from moto.server import ThreadedMotoServer

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.conftest import NodeFactory
from compat_tests.facade import Credentials, counts, eventually, receive
from compat_tests.lake_files import acknowledge, ask, footer, rows, segments, waiting
from compat_tests.node_process import NodeProcess, run_command

pytestmark = pytest.mark.slow

ALL = {"holdfast:archive": "all"}
ATTRIBUTES = {
    "kind": {"DataType": "String.kind", "StringValue": "ärger"},
    "blob": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    "count": {"DataType": "Number", "StringValue": "7"},
}
SNAPSHOTS_S = 600
"""Each snapshot starts ten times the last one's duration after it."""
ELSEWHERE = {"X-Forwarded-For": "192.0.2.7"}
"""A proxy's header for a client on another machine."""


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def options(lake: Path, *more: str) -> tuple[str, ...]:
    """A service that writes to the lake only on request."""
    return ("--lake", str(lake), "--archive-seal-s", "3600", "--snapshot-every-s", "0", *more)


def used(node: NodeProcess, *bodies: str, name: str = "q", **members: Any) -> str:
    """Send and delete messages in a queue that archives deleted ones; returns its URL."""
    client = Boto3Client(node.url, node.credentials)
    url: str = client.call("CreateQueue", QueueName=name, tags=ALL, **members)["QueueUrl"]
    for body in bodies:
        client.call("SendMessage", QueueUrl=url, MessageBody=body, MessageAttributes=ATTRIBUTES)
    for _ in bodies:
        for message in receive(client, url):
            client.call("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert counts(client, url) == (0, 0, 0)
    client.close()
    return url


def shown_attributes(row: dict[str, Any]) -> dict[str, Any]:
    """A row's attributes as boto3 shows them."""
    names = {"data_type": "DataType", "string_value": "StringValue", "binary_value": "BinaryValue"}
    return {
        name: {names[part]: content for part, content in value.items() if content is not None}
        for name, value in row["attributes"]
    }


def test_a_message_lies_in_the_lake_as_it_was_sent_until_the_service_forgets_it(
    start_node: NodeFactory, lake: Path
) -> None:
    node = start_node(*options(lake))
    used(node, "first", "zwölf")

    status, sealed = ask(node, "/seal", {})

    assert (status, [shard["batch"] for shard in sealed["shards"]]) == (200, [1])
    assert lake.stat().st_mode & 0o077 == 0
    found = rows(lake)
    assert sorted(row["body"] for row in found) == ["first", "zwölf"]
    assert all(shown_attributes(row) == ATTRIBUTES for row in found)
    assert {(r["account"], r["queue"], r["reason"], r["receive_count"]) for r in found} == {
        ("000000000000", "q", "deleted", 1)
    }
    assert waiting(node)["messages"] == 2
    (file,) = segments(lake)
    assert footer(file)["count"] == 2
    assert acknowledge(node, lake, 1) == (200, {"removed": 2})
    assert acknowledge(node, lake, 1) == (200, {"removed": 0})
    assert waiting(node)["messages"] == 0


def test_expired_and_old_batches_are_written_again_as_they_were(
    start_node: NodeFactory, lake: Path
) -> None:
    node = start_node(*options(lake))
    used(node, "one", "two")
    ask(node, "/seal", {})
    before = rows(lake)
    shutil.rmtree(lake)
    node.kill()

    node.start()
    used(node, "three")
    eventually(lambda: len(segments(lake)) == 1)  # the loss is noticed and the file written again
    ask(node, "/seal", {})

    again = rows(lake)
    assert again[:2] == before
    assert [row["body"] for row in again[2:]] == ["three"]
    assert [row["position"] for row in again] == [1, 2, 3]


def test_a_lake_that_is_away_costs_nobody_anything_and_gets_everything_when_it_is_back(
    start_node: NodeFactory, lake: Path
) -> None:
    lake.symlink_to(lake.with_name("a disk that is not mounted"))
    node = start_node(*options(lake))
    used(node, "one")

    status, refused = ask(node, "/seal", {})
    assert status == 503
    assert str(lake) in refused["error"]
    used(node, "two", name="another")
    node.kill()
    node.start()
    assert waiting(node)["messages"] == 2
    with urlopen(f"{node.url}/_holdfast/metrics") as page:
        metrics = page.read().decode()
    assert "holdfast_archive_waiting_messages 2.0" in metrics

    lake.unlink()
    assert ask(node, "/seal", {})[0] == 200
    assert sorted(row["body"] for row in rows(lake)) == ["one", "two"]


def test_the_lake_can_be_an_object_store(tmp_path: Path) -> None:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    variables = {
        "HOLDFAST_LAKE_ACCESS_KEY_ID": "lake",
        "HOLDFAST_LAKE_SECRET_ACCESS_KEY": "secret",
        "HOLDFAST_LAKE_REGION": "us-east-1",
        "HOLDFAST_LAKE_ENDPOINT_URL": url,
    }
    store = boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="lake",
        aws_secret_access_key="secret",
    )
    node = NodeProcess(
        tmp_path,
        "--lake",
        "s3://bucket/some/prefix",
        "--snapshot-every-s",
        "0",
        variables=variables,
    )
    try:
        node.start()
        used(node, "one", "two")
        assert ask(node, "/seal", {})[0] == 503  # the bucket does not exist
        store.create_bucket(Bucket="bucket")

        assert ask(node, "/seal", {})[0] == 200

        (found,) = store.list_objects_v2(Bucket="bucket")["Contents"]
        assert found["Key"].startswith("some/prefix/segments/")
        content = store.get_object(Bucket="bucket", Key=found["Key"])["Body"].read()
        (tmp_path / "copy.parquet").write_bytes(content)
        assert footer(tmp_path / "copy.parquet")["count"] == 2
    finally:
        node.close()
        store.close()
        server.stop()


def test_messages_under_a_kms_key_stay_sealed_unless_the_archive_has_it(
    start_node: NodeFactory, lake: Path, tmp_path: Path
) -> None:
    for number, more, readable in (
        (0, (), {"plain"}),
        (1, ("--archive-keys", "alias/orders"), {"plain", "kms"}),
        (2, ("--archive-bodies", "sealed"), set()),
    ):
        there = lake / str(number)
        node = start_node(*options(there, *more))
        run_command("keys", "--data", str(node.data), "add", "orders")
        eventually(lambda node=node: _has_key(node))  # type: ignore[misc]
        used(node, "plain")
        used(node, "kms", name="k", Attributes={"KmsMasterKeyId": "alias/orders"})
        ask(node, "/seal", {})

        found = rows(there)
        assert {row["body"] for row in found} - {None} == readable
        assert len(found) == 2
        for row in found:
            assert (row["body"] is None) == (row["sealed"] is not None)
            assert (row["data_key"] is None) == (row["sealed"] is None)
        content = b"".join(file.read_bytes() for file in segments(there))
        assert (b"kms" in content) == ("kms" in readable)
        node.stop()


def _has_key(node: NodeProcess) -> bool:
    return "keyring_reloaded" in node.log_tail()


def test_to_the_archive_a_restored_folder_is_another_one(
    start_node: NodeFactory, lake: Path, tmp_path: Path
) -> None:
    node = start_node(*options(lake))
    used(node, "one")
    ask(node, "/seal", {})
    backup, data = tmp_path / "backup", tmp_path / "restored"
    run_command("backup", "--with-master-key", str(backup), "--data", str(node.data))
    used(node, "two")
    ask(node, "/seal", {})
    assert acknowledge(node, lake, 2) == (200, {"removed": 2})
    first = waiting(node)["source"]
    node.stop()

    run_command("restore", str(backup), "--data", str(data))
    assert "nothing found" in run_command("verify", str(data)).stdout
    restored = NodeProcess(
        tmp_path / "again", *options(lake), data=data, credentials=node.credentials
    ).start()
    try:
        assert waiting(restored)["source"] != first
        assert waiting(restored)["messages"] == 1
        assert acknowledge(restored, lake, 1, source=first)[0] == 409
        ask(restored, "/seal", {})
        assert len(segments(lake)) == 3
    finally:
        restored.close()


def test_only_this_machine_and_the_root_of_the_account_may_ask(
    start_node: NodeFactory, lake: Path
) -> None:
    node = start_node(*options(lake))
    run_command("users", "--data", str(node.data), "add", "worker")
    made = run_command("credentials", "--data", str(node.data), "add", "--user", "worker").stdout
    secrets = dict(line.removeprefix("export ").split("=", 1) for line in made.splitlines())
    worker = Credentials(
        secrets["AWS_ACCESS_KEY_ID"], secrets["AWS_SECRET_ACCESS_KEY"], "us-east-1"
    )
    eventually(lambda: "access_keys_reloaded" in node.log_tail())

    with pytest.raises(HTTPError, match="403"):
        urlopen(f"{node.url}/_holdfast/archive")
    for headers in ({}, ELSEWHERE):
        assert ask(node, "", headers=headers)[0] == 200
        assert ask(node, "", headers=headers, credentials=worker)[0] == 403
        forged = node.credentials._replace(secret_access_key="x" * 40)
        assert ask(node, "", headers=headers, credentials=forged)[0] == 403
    assert ask(node, "/archived", {"source": "x"})[0] == 400
    assert acknowledge(node, lake, 1)[0] == 409
    assert ask(node, "/seal")[0] == 405
    assert ask(node, "/other")[0] == 404


def test_snapshots_say_what_waits_and_what_passed_through(
    start_node: NodeFactory, lake: Path
) -> None:
    node = start_node(*options(lake), "--snapshot-every-s", "1")
    used(node, "gone", name="passed")
    client = Boto3Client(node.url, node.credentials)
    url = client.call("CreateQueue", QueueName="f.fifo", Attributes={"FifoQueue": "true"})[
        "QueueUrl"
    ]
    for number, group in enumerate("aab"):
        client.call(
            "SendMessage",
            QueueUrl=url,
            MessageBody="nobody-counts-this",
            MessageGroupId=group,
            MessageDeduplicationId=str(number),
        )
    receive(client, url, 1, VisibilityTimeout=3600)
    client.close()

    def last() -> list[dict[str, Any]]:
        found = rows(lake, "snapshots")
        return [row for row in found if row["taken_at"] == found[-1]["taken_at"]]

    eventually(lambda: len(rows(lake, "snapshots")) > 0 and len(last()) == 3, within=SNAPSHOTS_S)
    eventually(lambda: any(row["state"] == "in_flight" for row in last()), within=SNAPSHOTS_S)

    seen = sorted((row["state"], row["receivable"], row["receive_count"]) for row in last())
    assert seen == [("in_flight", False, 1), ("visible", False, 0), ("visible", True, 0)]

    def flows() -> list[dict[str, Any]]:
        return [row for row in rows(lake, "flows") if row["queue"] == "passed"]

    eventually(lambda: bool(flows()), within=SNAPSHOTS_S)
    for counted in ("sent", "received", "deleted"):
        assert sum(row[counted] for row in flows()) == 1, counted
    assert sum(sum(row["time_in_queue_counts"]) for row in flows()) == 1
    for file in lake.glob("snapshots/**/*.parquet"):
        assert b"nobody-counts-this" not in file.read_bytes()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("--archive-every", "15m"), "archive_every: needs lake"),
        (("--lake", "l", "--archive-every", "often"), "archive_every: must be a number with"),
        (("--lake", "l", "--archive-max-mib", "0"), "archive_max_mib: "),
    ],
)
def test_settings_that_make_no_sense_stop_the_start(
    tmp_path: Path, settings: tuple[str, ...], said: str
) -> None:
    done = run_command("serve", "--data", str(tmp_path / "d"), *settings)

    assert done.returncode == 2
    assert done.stderr.startswith(f"holdfast: {said}")
    assert done.stderr.count("\n") == 1
