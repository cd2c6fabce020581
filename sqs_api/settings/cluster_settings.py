"""Settings of a member of a cluster: its etcd, its name and its connections with other hosts."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from cluster.fleet.loads import REPORT_MS
from cluster.peers.peer_settings import is_host_id
from storage.engines.store_options import Replication

_ETCD_ADDRESS = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[^/\s?#@:\[\]]+)(:[0-9]{1,5})?/?")
_CLUSTER = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_ZONE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
"""As a label of a Kubernetes node."""
_PEER_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^/\s?#@:\[\]]+)):([0-9]{1,5})")
_EVERY_ADDRESS = {"0.0.0.0", "::"}
"""Addresses to listen on that lead to no host."""
_NEEDED = ("host_name", "peer_address", "peer_ca", "peer_certificate", "peer_key")
_PAIRS = (("etcd_certificate", "etcd_key"), ("etcd_user", "etcd_password"))


def split_list(text: str | None) -> tuple[str, ...]:
    """The parts of a list that is separated by commas."""
    return tuple(part.strip() for part in text.split(",")) if text is not None else ()


def split_address(address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT; an IPv6 address is in brackets. Raises ValueError."""
    parts = _PEER_ADDRESS.fullmatch(address)
    if parts is None or not 1 <= int(parts[3]) <= 65535:
        raise ValueError("must be HOST:PORT, with an IPv6 address in brackets")
    return parts[1] or parts[2], int(parts[3])


def _etcd_addresses(text: str | None) -> str | None:
    addresses = split_list(text)
    if not all(map(_ETCD_ADDRESS.fullmatch, addresses)):
        raise ValueError("must be http:// or https:// addresses, separated by commas")
    if len(set(addresses)) < len(addresses):
        raise ValueError("names an address twice")
    return text


def _cluster(text: str) -> str:
    if _CLUSTER.fullmatch(text) is None:
        raise ValueError("must be lower-case letters, digits and hyphens")
    return text


def _name(text: str | None) -> str | None:
    if text is not None and not is_host_id(text):
        raise ValueError("must be lower-case letters, digits, hyphens and dots, as a DNS name")
    return text


def _zone(text: str | None) -> str | None:
    """The downward API of Kubernetes gives an empty text for a label that is not there."""
    if text and _ZONE.fullmatch(text) is None:
        raise ValueError("must be letters, digits, hyphens, dots and underscores, at most 63")
    return text or None


def checked_hosts(text: str) -> tuple[str, ...]:
    """Names of hosts in a list that is separated by commas. Raises ValueError."""
    names = split_list(text)
    if not all(map(is_host_id, names)):
        raise ValueError("must be names of hosts, separated by commas")
    if len(set(names)) < len(names):
        raise ValueError("names a host twice")
    return names


def _host_names(text: str | None) -> str | None:
    if text is not None:
        checked_hosts(text)
    return text


def _listen(text: str | None) -> str | None:
    if text is not None:
        split_address(text)
    return text


def _reachable(text: str | None) -> str | None:
    if text is not None and split_address(text)[0] in _EVERY_ADDRESS:
        raise ValueError("must be an address at which the other hosts reach this one")
    return text


class ProcessRole(StrEnum):
    """Kinds of processes of a fleet."""

    HOST = "host"
    """It keeps shards."""
    GATEWAY = "gateway"
    """It keeps none, and has all requests decided by hosts."""


class ClusterSettings(BaseModel):
    """Everything that makes a host a member of a cluster; nothing of it is set for a single
    host."""

    model_config = ConfigDict(defer_build=True)

    etcd: Annotated[str | None, AfterValidator(_etcd_addresses)] = None
    """Addresses of etcd's members, separated by commas, such as "https://a:2379,https://b:2379";
    they make this host a member of a cluster."""
    etcd_user: Annotated[str | None, Field(min_length=1)] = None
    """User of an etcd with authentication; its password comes from HOLDFAST_ETCD_PASSWORD only."""
    etcd_password: SecretStr | None = None
    """Its password, from HOLDFAST_ETCD_PASSWORD only."""
    etcd_ca: Path | None = None
    """PEM file of the authorities of etcd's certificates; by default those of the system."""
    etcd_certificate: Path | None = None
    """PEM file with the certificate shown to etcd."""
    etcd_key: Path | None = None
    """PEM file with its key, without a password."""
    cluster: Annotated[str, AfterValidator(_cluster)] = "holdfast"
    """Name of the fleet, of one cluster or several; several fleets may share an etcd."""
    cluster_number: Annotated[int, Field(ge=1)] = 1
    """Number of this host's cluster in its fleet, as `holdfast fleet add-cluster` said it."""
    role: ProcessRole = ProcessRole.HOST
    """`gateway`: a process without shards that passes requests on to the hosts of all clusters;
    needs no peer_address, and starts without etcd once it has run."""
    host_name: Annotated[str | None, AfterValidator(_name)] = None
    """Name of this host in the cluster, which its peer certificate bears as a DNS name."""
    zone: Annotated[str | None, AfterValidator(_zone)] = None
    """Name of the zone of this host: hosts of one zone may fail together. The status of the cluster
    warns while the loss of one zone would take a majority of its hosts. Empty if not known."""
    cluster_hosts: Annotated[str | None, AfterValidator(_host_names)] = None
    """Names of the hosts that found the cluster, separated by commas, the same on each of them."""
    replication: Replication = Replication.SYNC
    """The hosts whose disks an answer waits for. `sync`: a majority, so what was answered is lost
    only with the disks of a majority. `async`: for sends, deletes and changes of visibility only
    the one that leads, so those that it had not copied when it failed may be lost: messages are
    gone, or come back."""
    load_report_s: Annotated[int, Field(ge=1, le=REPORT_MS // 1000)] = REPORT_MS // 1000
    """Seconds between two reports of this host's load in a fleet of several clusters, and between
    two plans, the same on all hosts. Shorter ones are for trials: the manager acts on shorter
    bursts, and sooner after a failover, and more is written to etcd."""
    peer_address: Annotated[str | None, AfterValidator(_listen), AfterValidator(_reachable)] = None
    """HOST:PORT at which the other hosts reach this one."""
    peer_listen: Annotated[str | None, AfterValidator(_listen)] = None
    """HOST:PORT to listen on for the other hosts; by default peer_address."""
    peer_ca: Path | None = None
    """PEM file of the authority of all hosts' certificates, which must sign no others."""
    peer_certificate: Path | None = None
    """PEM file with this host's certificate, for clients and servers. Reloaded when the file
    changes."""
    peer_key: Path | None = None
    """PEM file with its key, without a password."""


def wrong_combination(settings: ClusterSettings) -> str | None:
    """The reason why these settings do not go together, in one line; None if they do."""
    if settings.etcd is None:
        # A host that lost this setting would otherwise start alone, with queues of its own.
        fields = ClusterSettings.model_fields.items()
        given = [name for name, field in fields if getattr(settings, name) != field.default]
        return f"{given[0]}: needs etcd" if given else None
    of_gateway = settings.role is ProcessRole.GATEWAY
    if of_gateway and settings.zone is not None:
        return "zone: a gateway has none, since it keeps no messages"
    for name in _NEEDED:
        if of_gateway and name == "peer_address":
            continue
        if getattr(settings, name) is None:
            return f"etcd: needs {name}"
    for one, other in _PAIRS:
        if (getattr(settings, one) is None) is not (getattr(settings, other) is None):
            return f"{one}: needs {_shown(other)}, and the other way round"
    return None


def _shown(name: str) -> str:
    return f"HOLDFAST_{name.upper()}" if name == "etcd_password" else name
