"""CloudWatch's calls on SQS's endpoint: who is answered, and what stays SQS's."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import pytest_asyncio

from auth.signing import SigningKey, signed_headers
from cluster.clock import SystemClock
from sqs_api.cloudwatch.cbor import decode_cbor, encode_cbor
from sqs_api.cloudwatch.metric_actions import Found, Wanted
from sqs_api.cloudwatch.wires import BODY_BYTES_MAX, Protocol, protocol_of
from sqs_api.gateway.usage import FILE_NAME, read_usage
from sqs_api.settings.config import AuthMode
from sqs_api.tests.commands import run
from sqs_api.tests.operator_client import add_user, keys_of
from sqs_api.tests.served import Served, page_request, serving
from sqs_api.tests.serving import Answer

TARGET = "GraniteServiceVersion20100801"
JSON = {"host": "localhost", "content-type": "application/x-amz-json-1.0"}


async def ask(
    served: Served,
    action: str,
    key: SigningKey | None = None,
    service: str = "monitoring",
    **members: Any,
) -> Answer:
    """A call in the JSON protocol."""
    body = json.dumps(members).encode()
    sent = JSON | {"x-amz-target": f"{TARGET}.{action}"}
    if key is not None:
        now_s = SystemClock().wall_s()
        sent = signed_headers(key, "POST", "/", sent, body, now_s, service=service)
    return await served.ask(page_request("POST", "/", sent, body))


def queues_in(answer: Answer) -> set[str]:
    assert answer.status == 200, answer
    return {metric["Dimensions"][0]["Value"] for metric in answer.json["Metrics"]}


@pytest_asyncio.fixture
async def opened(data: Path) -> AsyncIterator[Served]:
    async with serving(data) as served:
        await served.call("CreateQueue", QueueName="q")
        await served.send("x")
        yield served


async def test_open_mode_answers_all_three_protocols(opened: Served) -> None:
    in_json = await ask(opened, "ListMetrics")
    path = f"/service/{TARGET}/operation/ListMetrics"
    headers = {"host": "localhost", "smithy-protocol": "rpc-v2-cbor"}
    in_cbor = await opened.ask(page_request("POST", path, headers, encode_cbor({})))
    form = "Action=ListMetrics&Version=2010-08-01&Dimensions.member.1.Name=QueueName"
    posted = await opened.ask(page_request("POST", "/", {"host": "localhost"}, form.encode()))
    gotten = await opened.ask(page_request("GET", f"/?{form}", {"host": "localhost"}, b""))

    assert queues_in(in_json) == {"q"}
    assert decode_cbor(in_cbor.body) == in_json.json
    assert in_cbor.headers["smithy-protocol"] == "rpc-v2-cbor"
    for answer in (posted, gotten):
        assert answer.status == 200
        listed = re.findall(rb"<MetricName>(\w+)</MetricName>", answer.body)
        assert len(listed) == len(in_json.json["Metrics"])


async def test_each_account_sees_its_own_queues(data: Path) -> None:
    async with serving(data) as served:
        await served.call("CreateQueue", QueueName="q")
        await served.send("x")
    root = keys_of(run("credentials", "--data", data, "add"))
    tenant = keys_of(run("credentials", "--data", data, "add", "--account", "2" * 12))
    async with serving(data, auth=AuthMode.SIGV4) as served:
        assert queues_in(await ask(served, "ListMetrics", root)) == {"q"}
        assert queues_in(await ask(served, "ListMetrics", tenant)) == set()
        elsewhere = root._replace(region="eu-west-1")
        assert queues_in(await ask(served, "ListMetrics", elsewhere)) == set()


async def test_callers_are_checked(data: Path) -> None:
    async with serving(data) as served:
        await served.call("CreateQueue", QueueName="q")
    root = keys_of(run("credentials", "--data", data, "add"))
    lister = add_user(data, "lister", "cloudwatch:ListMetrics")
    async with serving(data, auth=AuthMode.SIGV4) as served:
        unsigned = await ask(served, "ListMetrics")
        of_sqs = await ask(served, "ListMetrics", root, service="sqs")
        denied = await ask(served, "GetMetricData", lister)
        unread = page_request("POST", "/", JSON | {"x-amz-target": f"{TARGET}.ListMetrics"}, b"{")
        assert (await served.ask(unread)).status == 403  # unsigned requests are not read
        allowed = await ask(served, "ListMetrics", lister)
        refusals = served.node.owner.accounting.refusals

    assert (unsigned.status, of_sqs.status, denied.status, allowed.status) == (403, 403, 403, 200)
    assert unsigned.headers["x-amzn-query-error"].startswith("MissingAuthenticationToken")
    assert "'monitoring'" in of_sqs.json["message"]
    assert "cloudwatch:GetMetricData on resource: *" in denied.json["message"]
    assert refusals["AccessDenied"] == 1
    lines = [json.loads(line) for line in (data / "audit.log").read_text().splitlines()]
    noted = [(line.get("user"), line.get("action"), line.get("outcome")) for line in lines]
    assert ("lister", "GetMetricData", "AccessDenied") in noted
    assert (None, "-", "MissingAuthenticationToken") in noted


def test_a_form_is_for_cloudwatch_by_its_version() -> None:
    field = b"Version=2010-08-01"
    found = {
        field,
        b"Action=A&" + field,
        field + b"&Action=A",
        b"x" + field + b"&" + field + b"&y",
        field.rjust(BODY_BYTES_MAX, b"&"),
    }
    others = {b"", b"x" + field, field + b"x", b"&x" + field + b"&", b"a=" + field}
    beyond = field.rjust(BODY_BYTES_MAX + 1, b"&")  # not searched

    for form in found | others | {beyond}:
        assert protocol_of(b"/", {}, form) is (Protocol.QUERY if form in found else None)
        if len(form) < BODY_BYTES_MAX:
            in_target = protocol_of(b"/?" + form, {}, b"")
            assert in_target is (Protocol.QUERY if form in found else None)


@pytest.mark.parametrize("protocol", ["cbor", "json"])
async def test_a_body_is_read_once_the_caller_was_let_in(data: Path, protocol: str) -> None:
    lister = add_user(data, "lister", "cloudwatch:ListMetrics")
    async with serving(data, auth=AuthMode.SIGV4) as served:
        answers = []
        for action in ("ListMetrics", "GetMetricData"):
            path, headers = "/", JSON | {"x-amz-target": f"{TARGET}.{action}"}
            if protocol == "cbor":
                path, headers = f"/service/{TARGET}/operation/{action}", {"host": "localhost"}
            now_s = SystemClock().wall_s()
            unreadable = b"\xff"
            signed = signed_headers(
                lister, "POST", path, headers, unreadable, now_s, service="monitoring"
            )
            answers.append(await served.ask(page_request("POST", path, signed, unreadable)))

    codes = [answer.headers["x-amzn-query-error"].partition(";")[0] for answer in answers]
    assert codes == ["MalformedInput", "AccessDenied"]


async def test_policy_check_knows_the_actions(data: Path) -> None:
    async with serving(data):
        pass
    add_user(data, "lister", "cloudwatch:ListMetrics")
    check = ("policy", "check", "--data", data, "--user", "lister", "--action")

    assert run(*check, "cloudwatch:ListMetrics").out.startswith("allowed: ")
    assert run(*check, "cloudwatch:GetMetricData").out.startswith("denied: ")


async def test_a_signature_for_monitoring_does_nothing_at_sqs(data: Path) -> None:
    root = keys_of(run("credentials", "--data", data, "add"))
    async with serving(data, auth=AuthMode.SIGV4) as served:
        headers = JSON | {"x-amz-target": "AmazonSQS.ListQueues"}
        now_s = SystemClock().wall_s()
        signed = signed_headers(root, "POST", "/", headers, b"{}", now_s, service="monitoring")
        answer = await served.ask(page_request("POST", "/", signed, b"{}"))

    assert answer.status == 403
    assert "'sqs'" in answer.json["message"]


_UNREADABLE: list[tuple[str, dict[str, str], bytes]] = [
    (f"/service/{TARGET}/operation/ListMetrics", {}, b"\xff"),
    ("/", {"x-amz-target": f"{TARGET}.ListMetrics"}, b"{"),
    ("/", {"x-amz-target": f"{TARGET}.ListMetrics"}, b"[1]"),
    ("/", {"x-amz-target": f"{TARGET}.Unknown"}, b"{}"),
    ("/", {}, b"Version=2010-08-01&Action=ListMetrics&Dimensions.member.x=1"),
    ("/", {}, b"Version=2010-08-01&Action=ListMetrics&Namespace.member.1=a&Namespace=b"),
    ("/", {}, b"Version=2010-08-01&Action=ListMetrics&a=1&a.b.c=2"),
    ("/", {}, b"Version=2010-08-01&Action=ListMetrics&NextToken=9999"),
    ("/", {}, b"Version=2010-08-01&Action=GetMetricData&StartTime=never"),
    ("/", {}, b"Version=2010-08-01"),
]


async def test_what_cannot_be_read_is_the_clients_fault(opened: Served) -> None:
    for path, headers, body in _UNREADABLE:
        sent = {"host": "localhost", **headers}

        assert (await opened.ask(page_request("POST", path, sent, body))).status == 400, (
            body or path
        )


async def test_text_of_an_sqs_request_is_none_of_cloudwatch(data: Path) -> None:
    root = keys_of(run("credentials", "--data", data, "add"))
    async with serving(data, auth=AuthMode.SIGV4) as served:
        headers = JSON | {"x-amz-target": "AmazonSQS.SendMessage"}
        body = b'{"MessageBody": "&Version=2010-08-01&"}'
        wrong = root._replace(secret_access_key="x" * 40)
        signed = signed_headers(wrong, "POST", "/", headers, body, SystemClock().wall_s())
        of_sqs = await served.ask(page_request("POST", "/", signed, body))
        form = b"Action=SendMessage&MessageBody=Version%3D2010-08-01&NoVersion=2010-08-01"
        in_form = await served.ask(page_request("POST", "/", {"host": "localhost"}, form))

    assert of_sqs.json["__type"] == "com.amazon.coral.service#InvalidSignatureException"
    assert b"http://queue.amazonaws.com/doc/2012-11-05/" in in_form.body


async def test_a_large_request_is_refused_unread(opened: Served) -> None:
    headers = {"host": "localhost", "x-amz-target": f"{TARGET}.ListMetrics"}

    answer = await opened.ask(page_request("POST", "/", headers, b"x" * (600 << 10)))

    assert answer.status == 413
    assert answer.headers["x-amzn-query-error"] == "RequestEntityTooLarge;Sender"


async def test_a_bug_is_answered_500_and_logged(
    opened: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> list[str]:
        raise ZeroDivisionError

    monkeypatch.setattr("sqs_api.cloudwatch.monitoring.HistoryReader.names", fails)

    answer = await ask(opened, "ListMetrics")

    assert answer.status == 500
    assert answer.headers["x-amzn-query-error"] == "InternalFailure;Receiver"
    assert opened.node.worker.gateway.outstanding == 0


@pytest.mark.parametrize("is_late", [False, True])
async def test_statistics_fail_rather_than_leave_out_a_late_host(
    opened: Served, monkeypatch: pytest.MonkeyPatch, *, is_late: bool
) -> None:
    """One that is away is left out. What was read for a refused call is not kept."""
    readers: list[ref[object]] = []

    async def found(reader: object, wanted: Iterable[Wanted]) -> Found:
        readers.append(ref(reader))
        return Found({each: {} for each in wanted}, is_complete=False, is_late=is_late)

    monkeypatch.setattr("sqs_api.cloudwatch.monitoring.HistoryReader.datapoints", found)
    now_s = SystemClock().wall_s()

    answer = await ask(
        opened,
        "GetMetricStatistics",
        Namespace="AWS/SQS",
        MetricName="NumberOfMessagesSent",
        Dimensions=[{"Name": "QueueName", "Value": "q"}],
        StartTime=now_s - 600,
        EndTime=now_s,
        Period=60,
        Statistics=["Sum"],
    )

    error = answer.headers.get("x-amzn-query-error")
    expected = (500, "InternalServiceError;Receiver") if is_late else (200, None)
    assert (answer.status, error) == expected
    gc.collect()
    assert [reader() for reader in readers] == [None]


async def test_results_go_on_in_pages(opened: Served) -> None:
    metric = {
        "Namespace": "AWS/SQS",
        "MetricName": "NumberOfMessagesSent",
        "Dimensions": [{"Name": "QueueName", "Value": "q"}],
    }
    stat = {"Metric": metric, "Period": 60, "Stat": "Sum"}
    now_s = SystemClock().wall_s()
    asked: dict[str, Any] = {
        "MetricDataQueries": [{"Id": f"m{number}", "MetricStat": stat} for number in range(5)],
        "StartTime": now_s - 60,
        "EndTime": now_s + 60,
        "MaxDatapoints": 2,
    }

    found: list[str] = []
    token: str | None = None
    while not found or token is not None:
        page = (await ask(opened, "GetMetricData", **asked, NextToken=token)).json
        assert sum(len(result["Values"]) for result in page["MetricDataResults"]) <= 2
        found += [result["Id"] for result in page["MetricDataResults"]]
        token = page.get("NextToken")

    assert found == [f"m{number}" for number in range(5)]
    for wrong in ("99", "0000000000", "9" * 5_000):
        assert (await ask(opened, "GetMetricData", **asked, NextToken=wrong)).status == 400


async def test_calls_are_counted_by_action_and_not_as_usage(opened: Served, data: Path) -> None:
    accounting = opened.node.owner.accounting

    async def used() -> int:
        await accounting.write()
        return sum(row.requests for row in read_usage(data / FILE_NAME, None, None))

    before = await used()
    await ask(opened, "ListMetrics")

    assert before > 0
    assert await used() == before
    assert accounting.requests()["ListMetrics", 200] == 1
