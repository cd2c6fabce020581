"""The client of the service's admin endpoint."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from compat_tests.certificates import Authority
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


def test_a_service_under_a_private_authority_is_believed_where_the_sdks_believe_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    with FakeService() as service:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority.sign("service"))
        service._server.socket = context.wrap_socket(service._server.socket, server_side=True)
        endpoint = f"https://127.0.0.1:{service.port}"

        with pytest.raises(ServiceUnusable, match="certificate verify failed"):
            Service(endpoint).seal()
        monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.file))
        assert Service(endpoint).seal() == {}
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "nothing"))
        with pytest.raises(ServiceUnusable):
            Service(endpoint).seal()


def test_service_that_is_away_or_fails_is_named(service: FakeService) -> None:
    service.fails = {"/_holdfast/archive/seal"}
    with pytest.raises(ServiceUnusable, match=r"127\.0\.0\.1:\d+: 503 the disk is full"):
        Service(service.endpoint).seal()
    with pytest.raises(ServiceUnusable, match=r"127\.0\.0\.1:9: "):
        Service("http://127.0.0.1:9").seal()
