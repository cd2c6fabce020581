"""The handshake: who opens a connection, to whom, and which version both speak.

The opener says Hello, the acceptor answers Welcome or refuses with a reason. Both check the other's
word against its certificate. Fields may be added at the end; none is ever removed or changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from cluster.peers.peer_outcomes import Reason, Refused
from cluster.peers.peer_settings import Channel, host_of
from cluster.peers.roles import CHANNELS, FIRST_MARK, MARKS, Place

MAGIC = b"HOLDFAST PEER\r\n"
VERSIONS = (1, 3)
"""Versions of frames and bodies that this release speaks, ascending: 3 has bundles, of which 2
was another form."""
HELLO_MAX = 16 << 10
"""Bytes of a frame of the handshake."""
T = TypeVar("T")


class HandshakeUnreadable(Exception):
    """The bytes are no handshake; the text says why in one line."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """One side of a handshake."""

    versions: tuple[int, ...]
    cluster: str
    host: str
    to: str
    """The host that is meant to read this."""
    channel: str
    log_ids: dict[int, bytes]
    """Ids of the logs of the shards in which this host is a voter. One that is new to a shard names
    none: it is there to get the cluster's log."""


class Welcome(msgspec.Struct, frozen=True, array_like=True):
    """The acceptor's answer."""

    version: int
    hello: Hello


def encode(handshake: Hello | Welcome) -> bytes:
    """The body of a frame."""
    return MAGIC + msgspec.msgpack.encode(handshake)


def decode(body: bytes, kind: type[T]) -> T:
    """The handshake in a frame. Raises HandshakeUnreadable."""
    if not body.startswith(MAGIC):
        raise HandshakeUnreadable("no handshake of a peer")
    try:
        return msgspec.msgpack.decode(body[len(MAGIC) :], type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HandshakeUnreadable(f"no {kind.__name__}: {error}") from error


def decode_refusal(body: bytes) -> Refused:
    """A refusal. Raises HandshakeUnreadable."""
    try:
        return msgspec.msgpack.decode(body, type=Refused)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HandshakeUnreadable(f"no refusal: {error}") from error


def names_of(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """The DNS names and the marks in a verified certificate, as the ssl module shows it."""
    names = (certificate or {}).get("subjectAltName", ())
    return frozenset(
        name for kind, name in names if kind == "DNS" or (kind == "URI" and name.startswith(MARKS))
    )


def agreed(
    own: Hello,
    theirs: Hello,
    names: frozenset[str],
    place_of: Callable[[str], Place | None],
) -> int | Refused:
    """The version to speak, or the reason not to. `names` are those of their certificate;
    `place_of` is the place of a process of the fleet, None for a stranger."""
    common = set(own.versions) & set(theirs.versions)
    if not common:
        detail = f"{theirs.host} speaks {theirs.versions}, {own.host} speaks {own.versions}"
        return Refused(Reason.NO_COMMON_VERSION, detail)
    place = place_of(theirs.host)
    if theirs.cluster != (own.cluster if place is None else place.cluster):
        return Refused(Reason.OTHER_CLUSTER, f"{theirs.host} belongs to {theirs.cluster}")
    if theirs.host == own.host:
        return Refused(Reason.SAME_HOST, f"both sides are {own.host}")
    if theirs.to != own.host:
        return Refused(Reason.OTHER_HOST, f"{theirs.host} means {theirs.to}, this is {own.host}")
    # Compared as they are: a wildcard would let one host pass for another.
    marks = {name for name in names if name.startswith(MARKS)} or {FIRST_MARK}
    if host_of(theirs.host) not in names:
        detail = f"the certificate of {theirs.host} names {', '.join(sorted(names)) or 'no host'}"
        return Refused(Reason.WRONG_CERTIFICATE, detail)
    if place is None:
        return Refused(Reason.NOT_A_MEMBER, f"{theirs.host} is no member of {own.cluster}")
    if theirs.channel != own.channel:
        return Refused(Reason.UNKNOWN_CHANNEL, f"there is no channel {theirs.channel}")
    if marks != {place.mark}:
        detail = f"the certificate of {theirs.host} is of {', '.join(sorted(marks))}, not of "
        return Refused(Reason.WRONG_CERTIFICATE, detail + place.mark)
    if theirs.channel not in CHANNELS[place.role]:
        return Refused(Reason.NOT_ALLOWED, f"{place.role} {theirs.host} may not use {own.channel}")
    return _refused_for_log(own, theirs) or max(common)


def welcomed(own: Hello, body: bytes, names: frozenset[str], place: Place) -> Welcome | Refused:
    """The other side's Welcome, or the reason not to speak; `place` is that of the host that is
    meant. Raises HandshakeUnreadable."""
    welcome = decode(body, Welcome)
    version = agreed(own, welcome.hello, names, lambda host: place if host == own.to else None)
    if isinstance(version, Refused):
        return version
    if welcome.version not in own.versions:
        return Refused(Reason.NO_COMMON_VERSION, f"version {welcome.version}")
    return welcome


def _refused_for_log(own: Hello, theirs: Hello) -> Refused | None:
    """Entries of another log are never adopted; requests may cross all the same."""
    if own.channel != Channel.REPLICATION:
        return None
    for shard, log_id in own.log_ids.items():
        if theirs.log_ids.get(shard, log_id) != log_id:
            return Refused(Reason.OTHER_LOG, f"{theirs.host} has another log of shard {shard}")
    return None
