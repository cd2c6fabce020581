"""Pages that are not SQS's."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from aiohttp.test_utils import make_mocked_request
from prometheus_client.parser import text_string_to_metric_families

from sqs_api.admin.admin_pages import AdminPages
from sqs_api.admin.routes import RESERVED
from sqs_api.http.server import SqsServer
from sqs_api.operators.api import AdminApi
from sqs_api.operators.operator_context import OperatorContext
from sqs_api.tests.serving import (
    ACCOUNT,
    REGION,
    Service,
    json_request,
    open_admin_access,
    request_bytes,
    settled,
)

HOUR_MS = 3_600_000


def _get(path: str, method: str = "GET", headers: dict[str, str] | None = None) -> bytes:
    return request_bytes(headers=headers, line=f"{method} {path} HTTP/1.1", length=False)


async def _samples(service: Service) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    page = await service.ask(_get("/_holdfast/metrics"))
    assert page.headers["Content-Type"].startswith("text/plain")
    families = text_string_to_metric_families(page.body.decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


async def test_health_and_readiness_answer_200(service: Service) -> None:
    for path in ("/healthz", "/readyz", "/healthz?x=y"):
        assert (await service.ask(_get(path))).status == 200


async def test_readiness_is_503_while_no_shard_decides_and_health_stays(service: Service) -> None:
    await service.shard.stop()

    assert (await service.ask(_get("/readyz"))).status == 503
    assert (await service.ask(_get("/healthz"))).status == 200


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize(
    "path", ["/_holdfast/", "/_holdfast/x", "/_holdfast/metrics/", "/_holdfast//"]
)
async def test_other_reserved_paths_do_not_exist(service: Service, method: str, path: str) -> None:
    assert (await service.ask(_get(path, method))).status == 404


async def test_metrics_count_requests_by_action_and_status(service: Service) -> None:
    url = await service.make_queue()
    for _ in range(3):
        await service.call("SendMessage", QueueUrl=url, MessageBody="x")
    await service.ask(request_bytes(b"{", {"X-Amz-Target": "AmazonSQS.SendMessage"}))

    samples = await _samples(service)

    def requests(action: str, status: str) -> float:
        labels = frozenset({("action", action), ("status", status)})
        return samples["holdfast_requests_total", labels]

    assert requests("CreateQueue", "200") == 1
    assert requests("SendMessage", "200") == 3
    assert requests("-", "400") == 1
    label = frozenset({("action", "SendMessage")})
    assert samples["holdfast_request_seconds_count", label] == 3


async def test_metrics_show_where_the_messages_of_a_queue_are(service: Service) -> None:
    url = await service.make_queue()
    for delay_seconds in (0, 0, 0, 900):
        body = {"MessageBody": "x", "DelaySeconds": delay_seconds}
        await service.call("SendMessage", QueueUrl=url, **body)
    await service.call("ReceiveMessage", QueueUrl=url)

    samples = await _samples(service)

    labels = frozenset({("account", ACCOUNT), ("region", REGION), ("queue", "q")})
    found = {
        name: samples[f"holdfast_queue_messages_{name}", labels]
        for name in ("visible", "not_visible", "delayed")
    }
    assert found == {"visible": 2, "not_visible": 1, "delayed": 1}


async def test_a_stranger_cannot_make_new_series(service: Service) -> None:
    for number in range(50):
        await service.ask(request_bytes(b"{}", {"X-Amz-Target": f"AmazonSQS.A{number}"}))
        await service.ask(request_bytes(b"Action=A%d" % number))

    series = [name for name, _ in await _samples(service) if name == "holdfast_requests_total"]

    assert len(series) == 1


# -- deleted queues --------------------------------------------------------------------------------


def _pages(service: Service, *, answers_anyone: bool = True) -> AdminPages:
    access, now_s = open_admin_access(), time.monotonic
    context = SimpleNamespace(
        account=ACCOUNT,
        catalog=service.catalog,
        deletions=service.deletions,
        router=service.router,
    )
    api = AdminApi(
        {OperatorContext: context},
        access,
        service.access,
        service.catalog,
        None,
        now_s,
        service.recheck_refusal,
    )
    return AdminPages(
        service.metrics,
        lambda: True,
        answers_anyone=answers_anyone,
        access=access,
        below={RESERVED: api},
    )


@pytest_asyncio.fixture
async def keeping(service: Service) -> Service:
    """A service that keeps deleted queues for an hour."""
    service.catalog.kept.window_ms = HOUR_MS
    service.port = await service.listen(
        SqsServer(
            service.gateway, _pages(service), limits=None, origins=None, places=None, proxies=None
        )
    )
    return service


async def _deleted(service: Service) -> Any:
    answer = await service.ask(_get("/_holdfast/deleted-queues"))
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("application/json")
    return answer.json


def _restore(queue_id: int) -> str:
    return f"/_holdfast/deleted-queues/{queue_id}/restore"


async def test_deleted_queue_is_restored_with_its_messages(keeping: Service) -> None:
    url = await keeping.make_queue(VisibilityTimeout="0")
    await keeping.call("SendMessage", QueueUrl=url, MessageBody="x")
    before = await keeping.call("ReceiveMessage", QueueUrl=url)
    now_ms = time.time() * 1000
    await keeping.call("DeleteQueue", QueueUrl=url)
    assert (
        await keeping.ask(json_request("SendMessage", QueueUrl=url, MessageBody="y"))
    ).status == 400

    (deleted,) = await _deleted(keeping)
    restored = await keeping.ask(_get(_restore(deleted["queue_id"]), "POST"))

    name = {"queue_id": 1, "account": ACCOUNT, "region": REGION, "name": "q"}
    assert (deleted.pop("purged"), deleted.pop("messages")) == (False, 1)
    assert deleted.pop("dead_letters") == 0
    assert deleted.pop("obstacle") is None
    assert not deleted.pop("restoring")
    assert abs(deleted.pop("deleted_at_ms") - now_ms) < 60_000
    assert abs(deleted.pop("restorable_until_ms") - now_ms - HOUR_MS) < 60_000
    assert (deleted, restored.status, restored.json) == (name, 200, name)
    assert await _deleted(keeping) == []
    handle = before["Messages"][0]["ReceiptHandle"]
    after = await keeping.call("ReceiveMessage", QueueUrl=url)
    assert [message["Body"] for message in after["Messages"]] == ["x"]
    await keeping.call("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)


async def test_deleting_ends_the_long_polls_of_a_queue_that_can_be_restored(
    keeping: Service,
) -> None:
    url = await keeping.make_queue()
    waiting = await keeping.connect()
    await waiting.send(json_request("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20))
    await settled()

    await keeping.call("DeleteQueue", QueueUrl=url)

    assert (await waiting.answer()).status in (200, 400)


async def test_what_cannot_be_restored_is_said(keeping: Service) -> None:
    await keeping.call("DeleteQueue", QueueUrl=await keeping.make_queue())
    await keeping.make_queue()

    taken = await keeping.ask(_get(_restore(1), "POST"))
    unknown = await keeping.ask(_get(_restore(7), "POST"))

    assert (taken.status, list(taken.json)) == (409, ["error"])
    assert (unknown.status, list(unknown.json)) == (404, ["error"])


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/_holdfast/deleted-queues", 405),
        ("GET", _restore(1), 405),
        ("DELETE", _restore(1), 405),
        ("POST", "/_holdfast/deleted-queues/x/restore", 404),
        ("POST", "/_holdfast/deleted-queues/" + "9" * 30 + "/restore", 404),
        ("POST", _restore(1) + "/", 404),
        ("POST", "/_holdfast/deleted-queues/1", 404),
        ("GET", "/_holdfast/deleted-queues-x", 404),
    ],
)
async def test_deleted_queues_know_two_requests(
    keeping: Service, method: str, path: str, status: int
) -> None:
    await keeping.call("DeleteQueue", QueueUrl=await keeping.make_queue())

    assert (await keeping.ask(_get(path, method))).status == status
    assert len(await _deleted(keeping)) == 1


WEB_PAGES = (
    {"Origin": "http://localhost:9324"},
    {"Sec-Fetch-Site": "cross-site"},
    {"User-Agent": "Mozilla/5.0", "Host": "rebound.example"},
)


@pytest.mark.parametrize("headers", WEB_PAGES, ids=lambda headers: next(iter(headers)))
async def test_web_pages_see_no_metrics(keeping: Service, headers: dict[str, str]) -> None:
    pages = _pages(keeping, answers_anyone=False)
    request = make_mocked_request("GET", "/_holdfast/metrics", headers).clone(remote="127.0.0.1")

    answer = await pages(request)

    assert answer is not None
    assert answer.status == 403


@pytest.mark.parametrize("remote", ["10.1.2.3", "2001:db8::1", "", "unix"])
async def test_other_machines_neither_see_nor_restore_queues(keeping: Service, remote: str) -> None:
    await keeping.call("DeleteQueue", QueueUrl=await keeping.make_queue())
    pages = _pages(keeping)

    for method, path in (("GET", "/_holdfast/deleted-queues"), ("POST", _restore(1))):
        answer = await pages(make_mocked_request(method, path).clone(remote=remote))
        assert answer is not None
        assert answer.status == 403
    metrics = await pages(make_mocked_request("GET", "/_holdfast/metrics").clone(remote=remote))
    assert metrics is not None
    assert metrics.status == 200, "for anyone"
    assert len(await _deleted(keeping)) == 1


async def test_a_queue_is_restored_by_one_of_several_at_once(keeping: Service) -> None:
    await keeping.call("DeleteQueue", QueueUrl=await keeping.make_queue())

    answers = await asyncio.gather(*[keeping.ask(_get(_restore(1), "POST")) for _ in range(4)])

    assert sorted(answer.status for answer in answers) == [200, 404, 404, 404]
