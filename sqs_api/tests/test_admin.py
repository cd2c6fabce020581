"""Pages that are not SQS's."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sqs_api.tests.serving import ACCOUNT, REGION, Service, request_bytes


def _get(path: str, method: str = "GET") -> bytes:
    return request_bytes(line=f"{method} {path} HTTP/1.1", length=False)


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
