"""The settings of a member of a cluster, and their files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.coordination.etcd_client import Access
from cluster.peers.peer_settings import Address
from cluster.peers.roles import cluster_mark
from compat_tests.made_certificates import Authority
from sqs_api.settings.cluster_settings import ClusterSettings
from sqs_api.settings.config import ConfigRefused, Settings, load, without_secrets
from sqs_api.settings.member_settings import member_settings
from sqs_api.tests.commands import Said, run
from sqs_api.workers.given_settings import decoded_settings, encoded_settings
from sqs_api.workers.member_workers import settings_of_worker, workers_there

MEMBER = {
    "etcd": "http://127.0.0.1:2379",
    "host_name": "a",
    "peer_address": "10.0.0.1:9325",
    "peer_ca": "ca.pem",
    "peer_certificate": "a.pem",
    "peer_key": "a.key",
    "master_key_file": "master.key",
}
WITHOUT_ETCD = {name: MEMBER[name] for name in MEMBER if name not in ("etcd", "master_key_file")}
REST = {
    "etcd_ca": "etcd-ca.pem",
    "etcd_certificate": "etcd.pem",
    "etcd_key": "etcd.key",
    "cluster": "orders",
    "cluster_number": "2",
    "role": "host",
    "cluster_hosts": "a,b,c",
    "peer_listen": "0.0.0.0:9325",
    "replication": "async",
    "zone": "zone-1",
}
"""Other settings of a member, but for user and password."""


@pytest.fixture(autouse=True)
def _no_settings_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)


def _refusal(flags: dict[str, Any]) -> str:
    with pytest.raises(ConfigRefused) as refused:
        load(flags, None)
    text = str(refused.value)
    assert "\n" not in text
    return text


def test_a_host_without_etcd_belongs_to_no_cluster() -> None:
    assert member_settings(load({}, None)) is None


def _flags(folder: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]) -> Settings:
    return load(given, None)


def _environment(folder: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]) -> Settings:
    for name, value in given.items():
        monkeypatch.setenv(f"HOLDFAST_{name.upper()}", value)
    return load({}, None)


def _file(folder: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]) -> Settings:
    file = folder / "c.toml"
    file.write_text("".join(f'{name} = "{value}"\n' for name, value in given.items()))
    return load({}, file)


@pytest.mark.parametrize("source", [_flags, _environment, _file])
def test_every_setting_can_be_a_flag_or_come_from_environment_or_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Callable[..., Settings]
) -> None:
    given = MEMBER | REST
    assert given.keys() - {"master_key_file"} | {"etcd_user", "etcd_password"} == set(
        ClusterSettings.model_fields
    )

    settings = source(tmp_path, monkeypatch, given)

    assert {name: str(getattr(settings, name)) for name in given} == given


def test_the_membership_has_what_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_ETCD_PASSWORD", "open sesame")
    etcd = "https://e1:2379, https://[::1]:2379"

    found = member_settings(load({**MEMBER, **REST, "etcd": etcd, "etcd_user": "holdfast"}, None))

    assert found is not None
    assert (found.cluster, found.host) == ("orders", "a")
    assert found.founders == ("a", "b", "c")
    endpoints = ("https://e1:2379", "https://[::1]:2379")
    assert found.etcd == Access(endpoints, "holdfast", "open sesame")
    assert found.etcd_tls == (Path("etcd-ca.pem"), Path("etcd.pem"), Path("etcd.key"))
    assert found.peer_address == "10.0.0.1:9325"
    assert found.peer_listen == Address("0.0.0.0", 9325)
    assert found.peer_tls == (Path("ca.pem"), Path("a.pem"), Path("a.key"))


def test_a_host_listens_at_its_address_and_founds_nothing_by_default() -> None:
    found = member_settings(load({**MEMBER, "peer_address": "[fd00::1]:9325"}, None))

    assert found is not None
    assert found.peer_listen == Address("fd00::1", 9325)
    assert (found.cluster, found.founders) == ("holdfast", ())
    assert found.etcd == Access(("http://127.0.0.1:2379",))


@pytest.mark.parametrize("name", [*WITHOUT_ETCD])
def test_etcd_needs_the_name_and_the_addresses_of_the_host(name: str) -> None:
    assert _refusal({key: MEMBER[key] for key in MEMBER if key != name}) == f"etcd: needs {name}"


def test_a_member_is_given_its_master_key(monkeypatch: pytest.MonkeyPatch) -> None:
    without = {name: value for name, value in MEMBER.items() if name != "master_key_file"}

    assert _refusal(without).startswith("etcd: needs master_key_file or HOLDFAST_MASTER_KEY")
    monkeypatch.setenv("HOLDFAST_MASTER_KEY", "A" * 43 + "=")
    assert member_settings(load(without, None)) is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(WITHOUT_ETCD | REST | {"role": "gateway"}).items(),
        ("etcd_user", "holdfast"),
    ],
)
def test_a_host_that_lost_its_etcd_does_not_start_alone(name: str, value: str) -> None:
    assert _refusal({name: value}) == f"{name}: needs etcd"


def test_a_member_syncs_and_checks_signatures_where_others_reach_it() -> None:
    for durability in ("os", "memory"):
        refusal = _refusal({**MEMBER, "durability": durability})
        assert refusal == "durability: must be fsync with etcd"
    assert _refusal({**MEMBER, "auth": "open", "host": "0.0.0.0"}).startswith("auth: open mode")
    assert load({**MEMBER, "auth": "open"}, None).auth == "open"


def test_what_comes_in_pairs_is_given_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    for one in ("etcd_certificate", "etcd_key"):
        refusal = _refusal({**MEMBER, one: "x.pem"})
        assert refusal == "etcd_certificate: needs etcd_key, and the other way round"
    refusal = _refusal({**MEMBER, "etcd_user": "u"})
    assert refusal == "etcd_user: needs HOLDFAST_ETCD_PASSWORD, and the other way round"
    monkeypatch.setenv("HOLDFAST_ETCD_PASSWORD", "p")
    assert _refusal(MEMBER) == refusal


def test_the_password_comes_from_the_environment_only_and_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "c.toml"
    file.write_text('etcd_password = "open sesame"\n')
    with pytest.raises(
        ConfigRefused, match=r":1: etcd_password: comes from HOLDFAST_ETCD_PASSWORD"
    ):
        load({}, file)
    monkeypatch.setenv("HOLDFAST_ETCD_PASSWORD", "open sesame")

    assert "sesame" not in repr(load({**MEMBER, "etcd_user": "u"}, None))
    assert "HOLDFAST_ETCD_PASSWORD" not in without_secrets()


BAD_VALUES = {
    "etcd": ("", "a:2379", "http://", "http://a,", "http://a http://b", "ftp://a", "http://a/v3"),
    "cluster": ("", "A", "a/b", "-a", "a" * 64, "a\n"),
    "zone": ("", "A", "a_b", "a,b"),
    "host_name": ("", "A", "a_b", "a,b", ".a", "a\n"),
    "cluster_hosts": ("", "a,,b", "a b", "a,B", "a,b,a"),
    "peer_address": ("", "a", "a:", ":9325", "a:0", "a:65536", "::1:9325", "0.0.0.0:1", "[::]:1"),
    "peer_listen": ("", "a", ":9325", "http://a:9325", "a:9325\n"),
    "etcd_user": ("",),
    "replication": ("", "Async", "none"),
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD_VALUES.items() for value in values]
)
def test_a_bad_value_is_refused_by_name(name: str, value: str) -> None:
    refusal = _refusal({**MEMBER, name: value})

    assert refusal.startswith(f"{name}: ")
    assert "needs" not in refusal


def test_an_etcd_is_not_named_twice() -> None:
    assert _refusal({**MEMBER, "etcd": "http://a,http://a"}) == "etcd: names an address twice"


def test_the_example_of_a_systemd_host_is_a_member(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in _variables("cluster.example.env").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOLDFAST_ETCD_PASSWORD", "p")
    monkeypatch.setenv("HOLDFAST_MASTER_KEY", "A" * 43 + "=")

    found = member_settings(load({}, None))

    assert found is not None
    assert found.host in found.founders
    assert found.etcd.user == "holdfast"


def _variables(file: str) -> dict[str, str]:
    lines = (Path(__file__).parents[2] / "deploy" / file).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


# -- files -----------------------------------------------------------------------------------------


def _checked(folder: Path, **changes: str | Path) -> Said:
    """The outcome of check-config for a member with good files, but for these changes."""
    authority = Authority(folder)
    pair = authority.sign("host", hosts=["a"])
    files = {"peer_ca": authority.file, "peer_certificate": pair.certificate, "peer_key": pair.key}
    given = MEMBER | files | changes
    file = folder / "c.toml"
    file.write_text("".join(f'{name} = "{value}"\n' for name, value in given.items()))
    return run("check-config", "--config", file)


def test_good_files_are_taken(tmp_path: Path) -> None:
    said = _checked(tmp_path)

    assert (said.status, said.err) == (0, "")
    assert "host_name = a" in said.out


def test_a_certificate_that_names_another_host_is_refused(tmp_path: Path) -> None:
    said = _checked(tmp_path, host_name="b")

    assert said == Said(2, "", f"{tmp_path / 'host.pem'} names a, not b")


@pytest.mark.parametrize("name", ["peer_ca", "peer_certificate", "peer_key"])
def test_files_of_a_peer_that_cannot_be_used_are_refused(tmp_path: Path, name: str) -> None:
    said = _checked(tmp_path, **{name: "/nonexistent"})

    assert (said.status, said.out) == (2, "")
    assert said.err.startswith("cannot use ")
    assert "No such file" in said.err


def test_files_for_etcd_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    locked = Authority(tmp_path, "other").sign("etcd", password=b"sesame")
    pair = {"etcd_certificate": locked.certificate, "etcd_key": locked.key}

    missing = _checked(tmp_path, etcd="https://a:2379", etcd_ca="/nonexistent")
    encrypted = _checked(tmp_path, etcd="https://a:2379", **pair)

    reason = "cannot use /nonexistent for etcd: No such file or directory"
    assert missing == Said(2, "", reason)
    assert encrypted.status == 2
    assert encrypted.err.startswith(f"cannot use {locked.certificate}, {locked.key} for etcd: ")


def test_a_worker_of_a_host_is_a_host_with_the_next_port(tmp_path: Path) -> None:
    given = {**MEMBER, **REST, "workers": "3", "data": str(tmp_path), "connections_max": "300"}
    settings = load(given | {"queues": [{"name": "q"}]}, None)
    assert workers_there(settings) == 3

    first, _, third = (settings_of_worker(settings, number, 3) for number in range(3))

    assert (first.data, first.host_name, len(first.queues)) == (tmp_path, "a", 1)
    assert (first.peer_address, first.cluster_hosts) == ("10.0.0.1:9325", "a,b,c")
    assert (third.data, third.connections_max, third.queues) == (tmp_path / "worker-3", 100, ())
    assert (third.peer_address, third.peer_listen) == ("10.0.0.1:9327", "0.0.0.0:9327")
    member = member_settings(decoded_settings(encoded_settings(third)))
    assert member is not None
    assert member.founders == ("a.worker-3", "b.worker-3", "c.worker-3")
    assert (member.host, member.worker, member.number) == ("a.worker-3", 2, 2)
    assert member.mark == cluster_mark(2)


def test_a_worker_that_has_shards_is_started_in_any_case(tmp_path: Path) -> None:
    settings = load({**MEMBER, "data": str(tmp_path)}, None)
    assert workers_there(settings) == 1
    for name in ("worker-3", "worker-99", "worker-x"):
        (tmp_path / name).mkdir()
    assert workers_there(settings) == 3
    assert workers_there(load({"data": str(tmp_path)}, None)) == 1, "a single host has no such"


def test_workers_need_ports_and_a_gateway_has_none() -> None:
    assert "workers: a gateway is one process" in _refusal(
        {**MEMBER, "role": "gateway", "workers": "2"}
    )
    address = {**MEMBER, "peer_address": "10.0.0.1:65534"}
    assert load({**address, "workers": "2"}, None).workers == "2"
    refused = _refusal({**address, "workers": "3"})
    assert (
        refused == "peer_address: each of the 3 workers needs a port, and there are none after it"
    )
