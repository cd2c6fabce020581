"""Membership: the settings of a member of a cluster, in the types of those who use them."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cryptography import x509

from cluster.coordination.etcd_client import Access
from cluster.coordination.etcd_wire import TlsFiles as EtcdTlsFiles
from cluster.members.member_records import MembershipRefused
from cluster.peers.peer_settings import Address, PeerSettings, host_of, worker_of
from cluster.peers.peer_tls import PeerTlsUnusable, TlsFiles, TlsNetwork
from cluster.peers.roles import FIRST_MARK, GATEWAY_MARK, MARKS, cluster_mark
from sqs_api.settings.cluster_settings import ProcessRole, split_address, split_list
from sqs_api.settings.config import Settings


class MemberSettings(NamedTuple):
    """A host's place in its cluster."""

    cluster: str
    number: int
    """The number of its cluster in the fleet; 0 for a gateway."""
    host: str
    founders: tuple[str, ...]
    """Names of the founding hosts; empty on a host that joins a cluster."""
    etcd: Access
    etcd_tls: EtcdTlsFiles
    peer_address: str
    """HOST:PORT as the other hosts reach it; empty of a gateway, as `peer_listen` is."""
    peer_listen: Address
    peer_tls: TlsFiles
    zone: str
    """Empty if it is not known."""
    worker: int
    """The number of the worker that it is on its machine. Of another one than the first, `number`
    is at first that of the first one's cluster."""
    mark: str
    """That of its certificate, see `roles.py`."""


def member_settings(settings: Settings) -> MemberSettings | None:
    """The membership that the settings, which are checked, describe; None of a single host."""
    if settings.etcd is None:
        return None
    assert settings.host_name is not None
    is_gateway = settings.role is ProcessRole.GATEWAY
    address = settings.peer_address or ""
    assert address or is_gateway
    password = settings.etcd_password
    return MemberSettings(
        cluster=settings.cluster,
        number=0 if is_gateway else settings.cluster_number,
        host=settings.host_name,
        founders=split_list(settings.cluster_hosts),
        etcd=Access(
            split_list(settings.etcd),
            settings.etcd_user or "",
            "" if password is None else password.get_secret_value(),
        ),
        etcd_tls=EtcdTlsFiles(settings.etcd_ca, settings.etcd_certificate, settings.etcd_key),
        peer_address="" if is_gateway else address,
        peer_listen=Address("", 0)
        if is_gateway
        else Address(*split_address(settings.peer_listen or address)),
        peer_tls=_peer_tls(settings),
        zone=settings.zone or "",
        worker=worker_of(settings.host_name),
        mark=GATEWAY_MARK if is_gateway else cluster_mark(settings.cluster_number),
    )


def _peer_tls(settings: Settings) -> TlsFiles:
    authority, certificate = settings.peer_ca, settings.peer_certificate
    assert authority is not None
    assert certificate is not None
    assert settings.peer_key is not None
    return TlsFiles(authority, certificate, settings.peer_key)


def open_network(
    membership: MemberSettings, settings: PeerSettings, monotonic_s: Callable[[], float]
) -> TlsNetwork:
    """The network of the membership's files, whose certificate bears the host's name.

    Raises MembershipRefused.
    """
    try:
        network = TlsNetwork(membership.peer_tls, settings, monotonic_s)
    except PeerTlsUnusable as error:
        raise MembershipRefused(str(error)) from error
    names = _names_in(membership.peer_tls.certificate)
    marks = {name for name in names if name.startswith(MARKS)} or {FIRST_MARK}
    mark, host = membership.mark, host_of(membership.host)
    if host in names and marks != {mark}:
        certificate = membership.peer_tls.certificate
        flag = f"--cluster-number {mark.rpartition('/')[2]}" if membership.number else "--gateway"
        raise MembershipRefused(
            f"{certificate} is of {', '.join(sorted(marks))}, and this process of {mark}: make it "
            f"with `holdfast cluster certificates {flag}`"
        )
    if host not in names:
        named = ", ".join(sorted(names)) or "no host"
        certificate = membership.peer_tls.certificate
        raise MembershipRefused(f"{certificate} names {named}, not {host}")
    return network


def _names_in(certificate: Path) -> set[str]:
    """The DNS names and marks in the first certificate of a file. Raises MembershipRefused."""
    try:
        first = x509.load_pem_x509_certificate(certificate.read_bytes())
        names = first.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return set()
    except (OSError, ValueError) as error:
        raise MembershipRefused(f"cannot use {certificate}: {error}") from error
    marks = names.value.get_values_for_type(x509.UniformResourceIdentifier)
    return {*names.value.get_values_for_type(x509.DNSName), *marks}


def etcd_context(membership: MemberSettings) -> ssl.SSLContext | None:
    """The TLS context for etcd; None if no address needs one. Raises MembershipRefused."""
    if not any(address.startswith("https:") for address in membership.etcd.endpoints):
        return None
    try:
        return membership.etcd_tls.context()
    except (OSError, ValueError) as error:
        files = ", ".join(str(file) for file in membership.etcd_tls if file is not None)
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise MembershipRefused(f"cannot use {files} for etcd: {reason}") from error
