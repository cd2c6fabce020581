"""The client of the service's admin endpoint."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from compat_tests.made_certificates import Authority
from spark_jobs.archive.archive_client import ArchiveClient, Refused, ServiceUnusable, TableVersion
from spark_jobs.lib.job_options import sdk_key
from spark_jobs.tests.job_services import FakeService, place_of
from sqs_api.settings.service_place import Place, find_place

TABLE = TableVersion("/lake/archive", "an-id", 7)


def found(url: str) -> Place:
    """The service of --url, with the environment's key and authorities."""
    return find_place(url, None, dict(os.environ), sdk_key)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path / "data"))


def test_shards_are_read_and_batches_acknowledged(service: FakeService) -> None:
    service.sealed = {("a", 0): 3, ("a", 1): 5}
    client = ArchiveClient(service.place)

    assert client.seal() == {("a", 0): 3, ("a", 1): 5}
    assert client.archived() == {("a", 0): 0, ("a", 1): 0}
    assert client.acknowledge(("a", 1), 4, TABLE) == 4
    assert client.archived() == {("a", 0): 0, ("a", 1): 4}
    assert service.told[0].items() >= TABLE._asdict().items()


def test_batch_that_was_never_sealed_is_refused(service: FakeService) -> None:
    with pytest.raises(Refused, match="there is no such batch"):
        ArchiveClient(service.place).acknowledge(("a", 0), 1, TABLE)


def test_requests_are_signed_with_the_key_that_the_sdks_find(service: FakeService) -> None:
    ArchiveClient(found(service.endpoint)).seal()

    signature = service.signed_by[0] or ""
    assert signature.startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")
    assert "/eu-central-1/sqs/aws4_request" in signature


def test_a_profile_that_is_not_there_is_said(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")

    with pytest.raises(ServiceUnusable, match=r"cannot find an access key: .*nobody"):
        ArchiveClient(found(service.endpoint)).seal()


def test_a_service_under_a_private_authority_is_believed_where_the_sdks_believe_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    with FakeService() as service:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority.sign("service"))
        service.server.socket = context.wrap_socket(service.server.socket, server_side=True)
        endpoint = f"https://127.0.0.1:{service.port}"

        with pytest.raises(ServiceUnusable, match="certificate verify failed"):
            ArchiveClient(found(endpoint)).seal()
        monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.file))
        assert ArchiveClient(found(endpoint)).seal() == {}
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "nothing"))
        with pytest.raises(ServiceUnusable):
            ArchiveClient(found(endpoint)).seal()


def test_service_that_is_away_or_fails_is_named(service: FakeService) -> None:
    service.fails = {"/_holdfast/archive/seal"}
    with pytest.raises(ServiceUnusable, match=r"127\.0\.0\.1:\d+: 503 the disk is full"):
        ArchiveClient(service.place).seal()
    with pytest.raises(ServiceUnusable, match=r"127\.0\.0\.1:9: Connection refused"):
        ArchiveClient(place_of("http://127.0.0.1:9")).seal()
