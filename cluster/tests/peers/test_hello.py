"""Hosts are let in or refused, with the reason."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from cluster.peers.hello import (
    MAGIC,
    HandshakeUnreadable,
    Hello,
    Welcome,
    agreed,
    decode,
    decode_refusal,
    encode,
    names_of,
)
from cluster.peers.peer_outcomes import Reason, Refused
from cluster.peers.peer_settings import host_of, is_host_id, process_name, worker_of
from cluster.peers.roles import GATEWAY_MARK, GATEWAYS, PeerRole, Place, cluster_mark
from cluster.tests.peers.peers import SETTINGS, Peer, start
from cluster.tests.peers.simulated_network import SimulatedNetwork
from cluster.tests.virtual_time import virtual
from cluster.tests.world import pass_time

OWN = Hello((1, 3), "c1", "b", "a", "replication", {0: b"log 0", 1: b"log 1"})
THEIRS = Hello((1,), "c1", "a", "b", "replication", {0: b"log 0", 7: b"log 7"})


PLACES = {
    "a": Place("c1"),
    "b": Place("c1"),
    "n": Place("c2", PeerRole.NEIGHBOUR, cluster_mark(2)),
    "g": Place(GATEWAYS, PeerRole.GATEWAY, GATEWAY_MARK),
}


def found(theirs: Hello, names: frozenset[str] = frozenset({"a"}), own: Hello = OWN) -> int | str:
    """The agreed version, or the reason of the refusal."""
    outcome = agreed(own, theirs, names, PLACES.get)
    return outcome.reason if isinstance(outcome, Refused) else outcome


def test_the_highest_common_version_is_spoken() -> None:
    assert found(THEIRS) == 1
    assert found(msgspec.structs.replace(THEIRS, versions=(1, 2, 3, 4))) == 3
    assert found(msgspec.structs.replace(THEIRS, versions=(2, 4))) == Reason.NO_COMMON_VERSION


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"cluster": "c2"}, Reason.OTHER_CLUSTER),
        ({"to": "c"}, Reason.OTHER_HOST),
        ({"host": "b"}, Reason.SAME_HOST),
        ({"channel": "gossip"}, Reason.UNKNOWN_CHANNEL),
        ({"log_ids": {1: b"another"}}, Reason.OTHER_LOG),
    ],
)
def test_refusals(changed: dict[str, object], reason: Reason) -> None:
    assert found(msgspec.structs.replace(THEIRS, **changed)) == reason


def test_the_certificate_names_the_host_exactly() -> None:
    for names in ({"c"}, set(), {"*"}, {"a.example"}):
        assert found(THEIRS, frozenset(names)) == Reason.WRONG_CERTIFICATE
    assert found(THEIRS, frozenset({"a", "a.example"})) == 1
    assert names_of({"subjectAltName": (("IP Address", "a"), ("DNS", "x"))}) == {"x"}
    assert names_of(None) == frozenset()


def test_the_certificate_of_a_host_is_that_of_its_workers() -> None:
    second = msgspec.structs.replace(THEIRS, host="a.worker-2")
    places = PLACES | {"a.worker-2": Place("c1")}

    for names, outcome in (({"a"}, 1), ({"a.worker-2"}, None), ({"b"}, None)):
        found = agreed(OWN, second, frozenset(names), places.get)
        assert found == outcome or (
            isinstance(found, Refused) and found.reason == Reason.WRONG_CERTIFICATE
        )
    for host, worker in (("a", 0), ("a", 1), ("a.example", 15)):
        name = process_name(host, worker)
        assert is_host_id(name)
        assert (host_of(name), worker_of(name)) == (host, worker)
    assert host_of("a.worker-0") == "a.worker-0"


def test_a_host_that_is_no_member() -> None:
    stranger = msgspec.structs.replace(THEIRS, host="z")

    assert found(stranger, frozenset({"z"})) == Reason.NOT_A_MEMBER


def test_requests_cross_between_hosts_with_different_logs() -> None:
    theirs = msgspec.structs.replace(THEIRS, channel="requests", log_ids={0: b"another"})
    own = msgspec.structs.replace(OWN, channel="requests")

    assert found(theirs, own=own) == 1


def test_ids_of_hosts() -> None:
    assert all(map(is_host_id, ["a", "host-1", "n1.example"]))
    assert not any(map(is_host_id, ["", "A", "a_b", "-a", "a-", "*.a", "a b", "a" * 254]))


def test_a_handshake_of_a_later_version_with_more_fields() -> None:
    class Later(Hello, frozen=True, array_like=True):
        more: str = ""

    later = Later(**msgspec.structs.asdict(THEIRS), more="news")

    assert decode(encode(later), Hello) == THEIRS


@given(st.binary(max_size=60))
def test_other_bytes_are_no_handshake(body: bytes) -> None:
    for kind in (Hello, Welcome):
        for data in (body, MAGIC + body):
            with pytest.raises(HandshakeUnreadable):
                decode(data, kind)
    with pytest.raises(HandshakeUnreadable):
        decode_refusal(b"\xc1" + body)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"cluster": "c2"}, Reason.OTHER_CLUSTER),
        ({"versions": (2,)}, Reason.NO_COMMON_VERSION),
        ({"log_ids": {0: b"another"}}, Reason.OTHER_LOG),
    ],
)
@virtual
async def test_both_sides_learn_the_reason(changed: dict[str, object], reason: Reason) -> None:
    network = SimulatedNetwork()
    a = Peer("a", network, SETTINGS, log_ids={0: b"one"})
    b = Peer("b", network, SETTINGS, **changed)  # type: ignore[arg-type]
    with capture_logs() as logs:
        await start([a, b])
        await pass_time(10.0)

    assert not a.reaches(b) or reason == Reason.OTHER_LOG
    refused = {line["reason"] for line in logs if line["event"] == "peer_refused"}
    unreachable = {
        line["reason"].split(":")[0] for line in logs if line["event"] == "peer_unreachable"
    }
    assert (refused, unreachable) == ({reason}, {reason})
    await a.transport.stop()
    await b.transport.stop()


@virtual
async def test_a_host_with_the_certificate_of_another_is_refused() -> None:
    network = SimulatedNetwork()
    network.names["b"] = ("c",)
    a, b = Peer("a", network, SETTINGS), Peer("b", network, SETTINGS)
    with capture_logs() as logs:
        await start([a, b])
        await pass_time(1.0)

    assert not a.reaches(b)
    assert not b.reaches(a)
    (line, *_) = [line for line in logs if line["event"] == "peer_refused"]
    assert line["reason"] == Reason.WRONG_CERTIFICATE
    await a.transport.stop()
    await b.transport.stop()
