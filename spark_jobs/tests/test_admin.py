"""The client of the service's admin endpoint."""

from __future__ import annotations

import pytest

from spark_jobs.admin import Refused, Service, ServiceUnusable
from spark_jobs.tests.services import FakeService


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")


def test_shards_are_read_and_batches_acknowledged(service: FakeService) -> None:
    service.sealed = {("a", 0): 3, ("a", 1): 5}
    client = Service(service.endpoint)

    assert client.seal() == {("a", 0): 3, ("a", 1): 5}
    assert client.archived() == {("a", 0): 0, ("a", 1): 0}
    assert client.acknowledge(("a", 1), 4, "/lake/archive", 7) == 4
    assert client.archived() == {("a", 0): 0, ("a", 1): 4}
    assert service.told[0]["version"] == 7


def test_batch_that_was_never_sealed_is_refused(service: FakeService) -> None:
    with pytest.raises(Refused, match="there is no such batch"):
        Service(service.endpoint).acknowledge(("a", 0), 1, "/lake/archive", 1)


def test_requests_to_this_machine_are_not_signed(service: FakeService) -> None:
    for host in ("127.0.0.1", "localhost"):
        Service(f"http://{host}:{service.port}").seal()

    assert service.signed_by == [None, None]


def test_requests_to_other_machines_are_signed(service: FakeService) -> None:
    # Linux takes this for loopback; for us it is an address like any other.
    Service(f"http://0.0.0.0:{service.port}").seal()

    signature = service.signed_by[0] or ""
    assert signature.startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")
    assert "/eu-central-1/sqs/aws4_request" in signature


def test_service_that_is_away_or_fails_is_named(service: FakeService) -> None:
    service.fails = {"/_holdfast/archive/seal"}
    with pytest.raises(ServiceUnusable, match=r"127\.0\.0\.1:\d+: 503 the disk is full"):
        Service(service.endpoint).seal()
    with pytest.raises(ServiceUnusable, match=r"127\.0\.0\.1:9: "):
        Service("http://127.0.0.1:9").seal()
