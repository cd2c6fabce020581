"""The sources of settings, and the one-line reasons for refusing them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sqs_api.settings.cluster_settings import ClusterSettings
from sqs_api.settings.config import (
    AuthMode,
    ConfigRefused,
    Settings,
    Switch,
    example_config,
    load,
    scalar_fields,
    without_secrets,
)
from storage.engines.store_options import Durability

DEFAULTS = {
    "host": "127.0.0.1",
    "port": 9324,
    "data": Path("holdfast-data"),
    "shards": None,
    "workers": "1",
    "auth": AuthMode.SIGV4,
    "durability": Durability.FSYNC,
    "account": "000000000000",
    "region": "us-east-1",
    "public_url": None,
    "grafana_url": None,
    "accept_loss": Switch.OFF,
    "disk_reserve_mib": 128,
    "aws_waits": Switch.ON,
    "master_key": None,
    "master_key_file": None,
    "access_key_id": None,
    "secret_access_key": None,
    "queues": (),
    "users": (),
    "restore_deleted_s": 3600,
    "account_rate": None,
    "queue_rate": None,
    "fifo_quotas": Switch.OFF,
    "lake": None,
    "archive_bodies": "readable",
    "archive_keys": "",
    "archive_max_mib": 4096,
    "archive_when_full": "discard",
    "lake_umask": "077",
    "archive_seal_s": 60,
    "archive_every": None,
    "snapshot_every_s": 300,
    "log": "json",
    "audit": Switch.ON,
    "usage_days": 400,
    "history_mib": 256,
    "metrics_queues_max": 500,
    "metrics": "loopback",
    "tls_certificate": None,
    "tls_key": None,
    "tls_client_ca": None,
    "trusted_proxies": "",
    "browser_origins": "",
    "connections_max": 10_000,
    "request_timeout_s": 20,
    "client_bytes_per_s_min": 16384,
    "idle_timeout_s": 120,
    "request_memory_bytes": 256 << 20,
    "waiting_polls_max": 100_000,
    "etcd": None,
    "etcd_user": None,
    "etcd_password": None,
    "etcd_ca": None,
    "etcd_certificate": None,
    "etcd_key": None,
    "cluster": "holdfast",
    "host_name": None,
    "zone": None,
    "cluster_hosts": None,
    "cluster_number": 1,
    "role": "host",
    "replication": "sync",
    "load_report_s": 10,
    "peer_address": None,
    "peer_listen": None,
    "peer_ca": None,
    "peer_certificate": None,
    "peer_key": None,
    "otlp_endpoint": None,
    "webhook_url": None,
    "webhook_secret": None,
    "oidc_issuer": None,
    "oidc_client_id": None,
    "oidc_client_secret": None,
    "oidc_roles": None,
    "oidc_role_claim": "groups",
    "oidc_name_claim": "preferred_username",
    "oidc_scopes": "openid profile email",
}


@pytest.fixture(autouse=True)
def _no_settings_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in DEFAULTS:
        monkeypatch.delenv(f"HOLDFAST_{name.upper()}", raising=False)


def _file(folder: Path, text: str) -> Path:
    file = folder / "holdfast.toml"
    file.write_text(text)
    return file


def _refusal(flags: dict[str, Any], file: Path | None = None) -> str:
    with pytest.raises(ConfigRefused) as refused:
        load(flags, file)
    text = str(refused.value)
    assert "\n" not in text
    return text


def test_nothing_needs_to_be_set() -> None:
    assert load({}, None).model_dump() == DEFAULTS


def test_flags_win_over_environment_over_file_over_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _file(tmp_path, 'port = 1\nregion = "file"\naccount = "111111111111"\n')
    monkeypatch.setenv("HOLDFAST_PORT", "2")
    monkeypatch.setenv("HOLDFAST_REGION", "environment")

    settings = load({"port": 3}, file)

    assert (settings.port, settings.region, settings.account) == (3, "environment", "111111111111")
    assert settings.host == DEFAULTS["host"]


PAIRED = {"tls_certificate", "tls_key", "tls_client_ca", "access_key_id", "archive_every"}
PAIRED |= {"webhook_url", "oidc_issuer", "oidc_client_id", "oidc_roles"}
PAIRED |= set(ClusterSettings.model_fields)
"""Settings that only go with another one."""


@pytest.mark.parametrize("key", [name for name, *_ in scalar_fields() if name not in PAIRED])
def test_every_setting_can_be_set_in_a_file_and_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    others = {
        "host": "127.0.0.2",
        "port": "1",
        "data": "elsewhere",
        "shards": "4",
        "workers": "2",
        "auth": "open",
        "durability": "os",
        "account": "123456789012",
        "region": "eu-west-1",
        "public_url": "https://h/x",
        "grafana_url": "https://g/x",
        "accept_loss": "on",
        "disk_reserve_mib": "64",
        "aws_waits": "off",
        "master_key_file": "/run/key",
        "restore_deleted_s": "1209600",
        "account_rate": "3000/second",
        "queue_rate": "5/minute",
        "fifo_quotas": "on",
        "lake": "/lake",
        "archive_bodies": "sealed",
        "archive_keys": "alias/orders,alias/other",
        "archive_max_mib": "10",
        "archive_when_full": "retain",
        "lake_umask": "027",
        "archive_seal_s": "5",
        "snapshot_every_s": "0",
        "log": "console",
        "audit": "off",
        "usage_days": "7",
        "history_mib": "16",
        "metrics_queues_max": "5",
        "metrics": "anyone",
        "trusted_proxies": "10.0.0.0/8, ::1",
        "browser_origins": "https://a.example,http://localhost:3000",
        "connections_max": "100",
        "request_timeout_s": "5",
        "client_bytes_per_s_min": "1000",
        "idle_timeout_s": "60",
        "request_memory_bytes": "10000000",
        "waiting_polls_max": "10",
        "otlp_endpoint": "http://collector:4318",
        "oidc_role_claim": "realm_access.roles",
        "oidc_name_claim": "email",
        "oidc_scopes": "openid",
    }
    from_file = getattr(load({}, _file(tmp_path, f'{key} = "{others[key]}"')), key)
    monkeypatch.setenv(f"HOLDFAST_{key.upper()}", others[key])

    assert str(getattr(load({}, None), key)) == others[key] == str(from_file)


def test_environment_without_our_prefix_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "1")
    monkeypatch.setenv("NOT_HOLDFAST_PORT", "1")

    assert load({}, None).port == 9324


def test_what_kubernetes_injects_for_a_service_of_our_name_does_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOLDFAST_PORT", "tcp://10.0.0.7:9324")
    monkeypatch.setenv("HOLDFAST_PORT_9324_TCP_ADDR", "10.0.0.7")
    monkeypatch.setenv("HOLDFAST_SERVICE_HOST", "10.0.0.7")

    assert load({}, None).port == 9324


def test_jobs_get_none_of_the_services_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_MASTER_KEY", "secret")
    monkeypatch.setenv("HOLDFAST_LAKE_SECRET_ACCESS_KEY", "the lake's")

    environment = without_secrets()

    assert "HOLDFAST_MASTER_KEY" not in environment
    assert environment["HOLDFAST_LAKE_SECRET_ACCESS_KEY"] == "the lake's"


def test_how_an_object_store_is_reached_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "REGION", "ENDPOINT_URL"):
        monkeypatch.setenv(f"HOLDFAST_LAKE_{name}", "x")
    monkeypatch.setenv("HOLDFAST_LAKE", "s3://bucket")

    assert load({}, None).lake == "s3://bucket"


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load({}, None).port = 1


BAD_VALUES = {
    "port": ("-1", "65536", "many", "", "1.5"),
    "auth": ("none", "", "SIGV4"),
    "durability": ("some",),
    "account": ("", "12", "1" * 13, "00000000000a", "٠" * 12, "0" * 12 + "\n"),
    "region": ("", "US", "a" * 33, "a b", "us-east-1\n"),
    "grafana_url": ("", "grafana", "javascript:alert(1)", "https://g?x"),
    "public_url": ("", "h", "ftp://h", "http://", "http://h?x", "http://h/ x", "http://h\n"),
    "aws_waits": ("yes", "true"),
    "restore_deleted_s": ("-1", "1209601", "", "1.5", "day"),
    "archive_bodies": ("", "encrypted"),
    "archive_max_mib": ("0", "-1", ""),
    "archive_when_full": ("", "keep"),
    "lake_umask": ("", "27", "100", "0777", "u=rwx"),
    "archive_seal_s": ("0", "1m"),
    "archive_every": ("", "0s", "15", "m", "1.5h", "15 m", "1234567s", "٣m"),
    "snapshot_every_s": ("-1", ""),
    "load_report_s": ("0", "11", "1.5"),
    "log": ("xml",),
    "oidc_issuer": ("", "http://login.example.com", "https://h?x", "https://", "login.example.com"),
    "oidc_roles": ("", "sre", "sre=king", "=admin", "sre=admin,x"),
    "oidc_role_claim": ("", "a b", ".a"),
}


@pytest.mark.parametrize(
    ("key", "value"), [(k, v) for k, values in BAD_VALUES.items() for v in values]
)
def test_bad_value_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, key: str, value: str
) -> None:
    assert _refusal({key: value}).startswith(f"{key}: ")
    monkeypatch.setenv(f"HOLDFAST_{key.upper()}", value)
    assert _refusal({}).startswith(f"{key}: ")


def test_unknown_setting_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _file(tmp_path, "frob = 1")
    assert _refusal({}, file) == f"{file}:1: frob: unknown setting"
    monkeypatch.setenv("HOLDFAST_FROB", "1")
    assert _refusal({}) == "frob: unknown setting"


@pytest.mark.parametrize("text", ["port", "port = ", "port = 1\nport = 2", "[", "\0", 'a = "\\q"'])
def test_bad_toml_is_refused_with_its_file(tmp_path: Path, text: str) -> None:
    assert "holdfast.toml" in _refusal({}, _file(tmp_path, text))


def test_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert "No such file" in _refusal({}, tmp_path / "missing.toml")
    assert "directory" in _refusal({}, tmp_path)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    assert "binary.toml" in _refusal({}, binary)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1"])
def test_open_mode_listens_on_loopback(host: str) -> None:
    assert load({"auth": "open", "host": host}, None).auth is AuthMode.OPEN


@pytest.mark.parametrize(
    "host",
    [
        "0.0.0.0",
        "",
        "::",
        "10.0.0.1",
        "h",
        "127.example.com",
        "127.0.0.1.example.com",
        "localhost.x",
    ],
)
def test_open_mode_is_refused_elsewhere(host: str) -> None:
    assert _refusal({"auth": "open", "host": host}).startswith("auth: ")
    assert isinstance(load({"host": host}, None), Settings)


def test_several_shards_need_each_entry_to_be_synced() -> None:
    refusal = _refusal({"shards": 2, "durability": "os"})

    assert refusal == "durability: must be fsync with several shards"
    assert load({"shards": 2}, None).shards == 2


def test_tls_needs_certificate_and_key() -> None:
    pair = {"tls_certificate": "c.pem", "tls_key": "k.pem"}

    assert _refusal({"tls_certificate": "c.pem"}).startswith("tls_certificate: needs tls_key")
    assert _refusal({"tls_key": "k.pem"}).startswith("tls_certificate: needs tls_key")
    assert _refusal({"tls_client_ca": "a.pem"}).startswith("tls_client_ca: needs tls_certificate")
    assert load({**pair, "tls_client_ca": "a.pem"}, None).tls_client_ca == Path("a.pem")


@pytest.mark.parametrize("text", ["10.0.0.1/8", "proxy", "10.0.0.0/8 ::1"])
def test_proxies_are_addresses_or_blocks(text: str) -> None:
    assert _refusal({"trusted_proxies": text}).startswith("trusted_proxies: must be addresses")


@pytest.mark.parametrize(
    "text", ["*", "null", "app.example.com", "https://a/", "https://a https://b"]
)
def test_origins_are_what_browsers_send(text: str) -> None:
    assert _refusal({"browser_origins": text}).startswith("browser_origins: must be origins")


def test_the_master_key_comes_from_the_environment_only_and_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _file(tmp_path, f'master_key = "{"A" * 43}="')
    refusal = _refusal({}, file)
    monkeypatch.setenv("HOLDFAST_MASTER_KEY", "open sesame")

    assert refusal == f"{file}:1: master_key: comes from HOLDFAST_MASTER_KEY only"
    assert "sesame" not in repr(load({}, None))


def test_the_environment_may_name_the_file_and_a_flag_goes_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CONFIG", str(_file(tmp_path, "port = 7")))
    (tmp_path / "other").mkdir()

    assert load({}, None).port == 7
    assert load({}, _file(tmp_path / "other", "port = 8")).port == 8


def test_the_example_file_names_every_setting_and_its_default(tmp_path: Path) -> None:
    text = example_config()
    given = "\n".join(
        line.removeprefix("# ")
        for line in text.splitlines()
        if " = " in line and '= ""' not in line
    )

    assert load({}, _file(tmp_path, given)) == load({}, None)
    assert {name for name, *_ in scalar_fields()} == set(re.findall(r"^# (\w+) =", text, re.M))


def test_the_shipped_example_is_what_the_settings_say() -> None:
    shipped = Path(__file__).parents[2] / "deploy" / "holdfast.example.toml"

    assert shipped.read_text() == example_config(), (
        "holdfast example-config > deploy/holdfast.example.toml"
    )


@pytest.mark.parametrize("port", ["70000", "-1", "many", "", "1e3", "80.5", None])
def test_a_wrong_port_is_refused_with_what_is_right(port: str | None) -> None:
    with pytest.raises(ConfigRefused) as caught:
        load({"port": port}, None)

    assert str(caught.value) == "port: must be a whole number from 0 to 65535"


def test_other_numbers_say_their_bounds_too() -> None:
    with pytest.raises(ConfigRefused, match=r"^usage_days: must be a whole number from 1$"):
        load({"usage_days": 0}, None)


@pytest.mark.parametrize(
    "lake",
    [
        *("ftp://x", "s3://", "s3:///prefix", "http://host/lake", "", "://x", "file://lake"),
        *("s3:/b", "S3:/bucket/p", "file:/lake", "s3://B", "s3://a b/c", "s3://ab", "s3a://-bc"),
        *("s3://bucket-/p", "s3://buc_ket", "s3://" + "b" * 64, "s3://bucket?x", "s3://bücket"),
    ],
)
def test_an_impossible_lake_is_refused(lake: str) -> None:
    with pytest.raises(ConfigRefused, match=r"^lake: must be a folder or s3://BUCKET/PREFIX$"):
        load({"lake": lake}, None)


@pytest.mark.parametrize("lake", ["[lake]", "a/b]", "file:///d/%2F/lake", "C:\\lake"])
def test_a_lake_at_which_no_table_can_be_is_refused(lake: str) -> None:
    with pytest.raises(ConfigRefused, match=r"^lake: its path has .+ Delta tables do not work$"):
        load({"lake": lake}, None)


@pytest.mark.parametrize(
    "lake",
    [
        *("lake", "/a/lake", "s3://bucket", "s3a://b-1/p", "file:///lake", "s3:", "a:b/c"),
        *("S3://b.c/p q", "s3://" + "b" * 63),
    ],
)
def test_a_possible_lake_is_taken(lake: str) -> None:
    assert load({"lake": lake}, None).lake == lake
