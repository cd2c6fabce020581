"""An etcd with TLS, client certificates, users and passwords."""

from __future__ import annotations

import base64
import gc
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from cluster.coordination.coordination import (
    EMPTY,
    Change,
    Done,
    Snapshot,
    Transaction,
    Unavailable,
)
from cluster.coordination.etcd_client import Access
from cluster.coordination.etcd_messages import STATUS
from cluster.coordination.etcd_wire import HttpWire, NoAnswer, TlsFiles
from cluster.tests.coordinations import Hosts, until
from cluster.tests.etcd_processes import Certificates, EtcdProcesses, etcd_program, running_etcd
from compat_tests.made_certificates import Authority

pytestmark = pytest.mark.slow

A_RECORD = Transaction({}, {"a": b"1"})
USER, PASSWORD = "holdfast", "secret enough"
SHARED = "/test/"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("etcd")


@pytest.fixture(scope="module")
def certificates(authority: Authority) -> Certificates:
    return Certificates(authority.file, *authority.sign("member"))


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder)


@pytest.fixture(scope="module")
def etcd(folder: Path, certificates: Certificates) -> Iterator[EtcdProcesses]:
    """One member, to which only a client with a certificate may speak."""
    if etcd_program() is None:
        pytest.skip("no etcd on this machine, and none in a package for its kind")
    with running_etcd(folder, 1, certificates) as started:
        yield started


@pytest.fixture
def tls(authority: Authority) -> ssl.SSLContext:
    """A client's. With a common name, the gateway refuses it once there are users."""
    organization = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "hosts")])
    return TlsFiles(authority.file, *authority.sign("host", subject=organization)).context()


@pytest.fixture
async def hosts(etcd: EtcdProcesses, tls: ssl.SSLContext) -> AsyncIterator[Hosts]:
    made = Hosts(Access(etcd.endpoints), lambda: HttpWire(tls))
    yield made
    await made.close()


async def refusal(etcd: EtcdProcesses, tls: ssl.SSLContext | None) -> NoAnswer:
    """The reason why nothing can be said to the member."""
    wire = HttpWire(tls)
    with pytest.raises(NoAnswer) as raised:
        await wire.post(etcd.endpoints[0], STATUS, b"{}", {}, 30)
    await wire.close()
    gc.collect()
    return raised.value


async def test_a_client_with_a_certificate_is_served(hosts: Hosts) -> None:
    host = hosts.host()
    heard: list[Change] = []
    await host.watch(EMPTY, heard.append)

    assert isinstance(await host.commit(A_RECORD), Done)

    assert isinstance(await host.read_all(), Snapshot)
    await until(lambda: any(change.records == {"a": b"1"} for change in heard))


async def test_a_member_is_refused_unless_the_authority_signed_for_it(
    etcd: EtcdProcesses, certificates: Certificates, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger")
    theirs = TlsFiles(stranger.file, certificates.certificate, certificates.key).context()

    for context in (theirs, None):
        refused = await refusal(etcd, context)
        assert "CERTIFICATE_VERIFY_FAILED" in str(refused)
        assert not refused.was_sent


async def test_a_client_is_refused_without_a_certificate(
    etcd: EtcdProcesses, certificates: Certificates
) -> None:
    await refusal(etcd, TlsFiles(certificates.ca).context())


async def test_http_in_front_of_an_etcd_with_tls_is_named(etcd: EtcdProcesses) -> None:
    at = etcd.endpoints[0].replace("https:", "http:")
    wire = HttpWire()

    with pytest.raises(NoAnswer) as posted:
        await wire.post(at, STATUS, b"{}", {}, 30)
    with pytest.raises(NoAnswer) as watched:
        async for _ in wire.stream(at, STATUS, b"{}", {}, 30):
            pass
    await wire.close()

    assert str(posted.value) == str(watched.value)
    assert str(posted.value) == (
        f"etcd at {at}: Server disconnected. If it speaks TLS, name it with https:// in --etcd"
    )


# -- users -----------------------------------------------------------------------------------------


class Administrator:
    """Sends what `etcdctl` would, to make users."""

    def __init__(self, endpoint: str, tls: ssl.SSLContext) -> None:
        self._endpoint = endpoint
        self._wire = HttpWire(tls)

    async def say(self, path: str, **fields: object) -> None:
        body = msgspec.json.encode(fields)
        reply = await self._wire.post(self._endpoint, f"/v3/auth/{path}", body, {}, 10)
        assert reply.status == 200, reply

    async def enable_users(self) -> None:
        """A user that may do everything below one prefix, nothing elsewhere."""
        key, end = SHARED.encode(), SHARED.encode()[:-1] + b"0"
        allowed = {
            "permType": "READWRITE",
            "key": base64.b64encode(key).decode(),
            "range_end": base64.b64encode(end).decode(),
        }
        await self.say("user/add", name="root", password="root")
        await self.say("user/grant", user="root", role="root")
        await self.say("role/add", name="hosts")
        await self.say("role/grant", name="hosts", perm=allowed)
        await self.say("user/add", name=USER, password=PASSWORD)
        await self.say("user/grant", user=USER, role="hosts")
        await self.say("enable")
        await self._wire.close()


@pytest.fixture(scope="module")
def with_users(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[EtcdProcesses]:
    if etcd_program() is None:
        pytest.skip("no etcd on this machine, and none in a package for its kind")
    with running_etcd(tmp_path_factory.mktemp("users"), 1, certificates) as started:
        yield started


async def test_users_and_tokens(with_users: EtcdProcesses, tls: ssl.SSLContext) -> None:
    (member,) = with_users.members
    await Administrator(member.endpoint, tls).enable_users()
    hosts = Hosts(Access(with_users.endpoints, USER, PASSWORD), lambda: HttpWire(tls))
    host = hosts.host(deadline_s=20, silence_s=1)
    heard: list[Change] = []
    await host.watch(EMPTY, heard.append)
    lease = await host.grant(30, lambda: None)
    assert not isinstance(lease, Unavailable)
    assert isinstance(await host.commit(A_RECORD), Done)

    # A member that restarts has forgotten its tokens.
    with_users.kill(member)
    with_users.start_member(member)
    assert isinstance(await host.commit(Transaction({}, {"b": b"2"})), Done)
    assert isinstance(await host.read_all(), Snapshot)
    await until(lambda: any(change.records == {"b": b"2"} for change in heard))
    assert await lease._renew()
    assert len(await host.members()) == 1

    elsewhere = await hosts.host(prefix="/others/").commit(A_RECORD)
    assert isinstance(elsewhere, Unavailable)
    assert "permission denied" in elsewhere.reason

    for user, password, reason in (
        (USER, "wrong", "authentication failed"),
        ("", "", "user name is empty"),
    ):
        hosts.access = Access(with_users.endpoints, user, password)
        refused = await hosts.host(deadline_s=2).commit(A_RECORD)
        assert isinstance(refused, Unavailable)
        assert reason in refused.reason
    await hosts.close()
