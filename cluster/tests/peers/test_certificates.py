"""The certificates that `holdfast cluster certificates` makes, shown to each other by hosts."""

from __future__ import annotations

import asyncio
import ssl
import stat
from pathlib import Path

import pytest

from cluster.clock import SystemClock
from cluster.peers.certificates import CertificatesRefused, HostFiles, make_certificates
from cluster.peers.hello import names_of
from cluster.peers.peer_settings import Address, PeerSettings
from cluster.peers.peer_tls import TlsFiles, TlsNetwork

NOW_S = SystemClock().wall_s()
DAY_S = 86400.0


class End(asyncio.Protocol):
    """One end of a connection, once TLS is agreed upon."""

    def __init__(self) -> None:
        self.opened: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.opened.set_result(transport)


def _network(files: HostFiles) -> TlsNetwork:
    shown = TlsFiles(files.authority, files.certificate, files.key)
    return TlsNetwork(shown, PeerSettings(), SystemClock().monotonic_s)


async def _meet(one: TlsNetwork, other: TlsNetwork, name: str) -> tuple[set[str], set[str], str]:
    """The names that each side sees of the other, and the version of TLS."""
    accepted, opened = End(), End()
    address = await other.listen(Address("127.0.0.1", 0), lambda: accepted)
    try:
        await one.connect(name, address, opened)
        async with asyncio.timeout(30):
            near, far = await opened.opened, await accepted.opened
        seen = [set(names_of(each.get_extra_info("peercert"))) for each in (far, near)]
        version = near.get_extra_info("ssl_object").version()
        near.abort()
        far.abort()
    finally:
        other.close()
    return seen[0], seen[1], version


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.*")}


async def test_hosts_know_each_other_by_them(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "out", ["a", "b.example", "c"], 30, NOW_S)

    a, b = _network(made["a"]), _network(made["b.example"])

    assert await _meet(a, b, "b.example") == ({"a"}, {"b.example"}, "TLSv1.3")
    assert await _meet(b, a, "a") == ({"b.example"}, {"a"}, "TLSv1.3")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        await _meet(a, b, "c")


async def test_a_second_call_renews_under_the_same_authority_with_the_same_keys(
    tmp_path: Path,
) -> None:
    before = make_certificates(tmp_path, ["a", "b"], 30, NOW_S - 20 * DAY_S)
    old = _contents(tmp_path)
    running = _network(before["a"])

    after = make_certificates(tmp_path, ["a", "c"], 30, NOW_S)

    assert after["a"].expires_at > before["a"].expires_at
    now = _contents(tmp_path)
    assert {name for name in old if now[name] != old[name]} == {"a/peer.pem"}
    assert running.reload_if_changed()
    assert (await _meet(running, _network(after["c"]), "c"))[1] == {"c"}
    assert (await _meet(running, _network(before["b"]), "b"))[1] == {"b"}


async def test_a_host_without_its_key_gets_a_new_one(tmp_path: Path) -> None:
    before = make_certificates(tmp_path, ["a", "b"], 30, NOW_S)
    old = before["a"].key.read_bytes()
    before["a"].key.unlink()

    after = make_certificates(tmp_path, ["a"], 30, NOW_S)

    assert after["a"].key.read_bytes() != old
    assert (await _meet(_network(after["a"]), _network(before["b"]), "b"))[0] == {"a"}


async def test_another_authority_is_a_stranger(tmp_path: Path) -> None:
    ours = make_certificates(tmp_path / "ours", ["a"], 30, NOW_S)
    theirs = make_certificates(tmp_path / "theirs", ["b"], 30, NOW_S)

    with pytest.raises(ssl.SSLCertVerificationError):
        await _meet(_network(ours["a"]), _network(theirs["b"]), "b")


async def test_a_certificate_ends_when_it_says(tmp_path: Path) -> None:
    made = make_certificates(tmp_path, ["a", "b"], 5, NOW_S - 6 * DAY_S)

    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        await _meet(_network(made["a"]), _network(made["b"]), "b")


def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    make_certificates(tmp_path / "out", ["a"], 30, NOW_S)

    for file in tmp_path.rglob("*.key"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(list(tmp_path.rglob("*.key"))) == 2
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700


def test_no_certificate_outlives_its_authority(tmp_path: Path) -> None:
    made = make_certificates(tmp_path, ["a"], 3650, NOW_S - 3000 * DAY_S)["a"]
    later = make_certificates(tmp_path, ["a"], 3650, NOW_S)["a"]

    assert later.expires_at == made.expires_at
    with pytest.raises(CertificatesRefused, match="make another authority"):
        make_certificates(tmp_path, ["a"], 30, NOW_S + 640 * DAY_S)


def test_an_authority_that_is_not_whole_is_refused_and_kept(tmp_path: Path) -> None:
    make_certificates(tmp_path / "one", ["a"], 30, NOW_S)
    make_certificates(tmp_path / "two", ["a"], 30, NOW_S)
    key = tmp_path / "one" / "ca.key"
    content = key.read_bytes()

    key.unlink()
    with pytest.raises(CertificatesRefused, match=r"ca\.pem is there without .*ca\.key$"):
        make_certificates(tmp_path / "one", ["a"], 30, NOW_S)
    key.write_bytes((tmp_path / "two" / "ca.key").read_bytes())
    with pytest.raises(CertificatesRefused, match=r"ca\.key is not the key of .*ca\.pem$"):
        make_certificates(tmp_path / "one", ["a"], 30, NOW_S)
    key.write_bytes(b"x")
    with pytest.raises(CertificatesRefused, match="is no key"):
        make_certificates(tmp_path / "one", ["a"], 30, NOW_S)
    key.write_bytes(content)
    make_certificates(tmp_path / "one", ["a"], 30, NOW_S)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(CertificatesRefused, match="cannot write"):
        make_certificates(tmp_path / "file", ["a"], 30, NOW_S)
