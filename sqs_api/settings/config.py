"""Settings: one frozen value, from flags over environment (HOLDFAST_...) over file over default.

The only place that reads the environment or a configuration file. A key that is not below stops the
start.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
)

from sqs_api.settings.cluster_settings import (
    ClusterSettings,
    ProcessRole,
    split_address,
    wrong_combination,
)
from sqs_api.settings.declarations import TABLES, Account, DeclaredQueue, DeclaredUser, in_order
from sqs_api.settings.logs import LogFormat
from sqs_api.settings.origins import AllowedOrigins
from sqs_api.settings.outgoing_settings import TraceSettings, WebhookSettings, wrong_webhook
from sqs_api.settings.proxies import TrustedProxies
from sqs_api.settings.refusals import placed, reason_of
from sqs_api.settings.service_place import DEFAULT_DATA, is_loopback
from sqs_api.settings.sign_in_settings import SignInSettings, wrong_sign_in
from storage.engines.store_options import Durability
from storage.lake.lake_permissions import OWNER_ONLY, UMASK, check_path
from visibility.contract.limits import DAY

_PREFIX = "HOLDFAST_"
_FILE_VARIABLE = "HOLDFAST_CONFIG"
_NATIVE_VARIABLE = "HOLDFAST_NATIVE"
"""Read before all modules, see `sqs_api.__main__`."""
_OF_THE_LAKE = {
    "HOLDFAST_LAKE_ACCESS_KEY_ID",
    "HOLDFAST_LAKE_SECRET_ACCESS_KEY",
    "HOLDFAST_LAKE_SESSION_TOKEN",
    "HOLDFAST_LAKE_REGION",
    "HOLDFAST_LAKE_ENDPOINT_URL",
}
"""Access to an object store (`storage.lake.table.ObjectStore`): read by the exporter and by
jobs."""
_SECRETS = {
    "master_key",
    "secret_access_key",
    "etcd_password",
    "webhook_secret",
    "oidc_client_secret",
}
"""Settings that a file must not hold: people share it."""
_RESTORE_S_MAX = 14 * DAY
"""As long as SQS can keep a message: a queue restored later would be empty."""


class AuthMode(StrEnum):
    """Ways to establish the caller."""

    SIGV4 = "sigv4"
    """Every request is signed by a known access key."""
    OPEN = "open"
    """Nothing is verified; loopback only."""


class Switch(StrEnum):
    """A yes or no that reads well on a command line."""

    ON = "on"
    OFF = "off"


SHARDS_MAX = 16
_PORTS = 1 << 16
"""Shards of a data folder."""
CLUSTER_SHARDS = 3
"""Shards of a new cluster, by default."""


class Audience(StrEnum):
    """Clients that are answered."""

    LOOPBACK = "loopback"
    """Clients on this machine."""
    ANYONE = "anyone"
    """Every client that reaches the port."""


class Bodies(StrEnum):
    """Forms of archived messages under the built-in key."""

    READABLE = "readable"
    SEALED = "sealed"


class WhenFull(StrEnum):
    """Fate of expired messages that the archive has no room for."""

    DISCARD = "discard"
    """They are removed, as without an archive."""
    RETAIN = "retain"
    """They stay in their queues, and can be received, until there is room."""


class ConfigRefused(Exception):
    """The settings cannot be used; the text says why in one line."""


def _region(text: str) -> str:
    if re.fullmatch(r"[a-z0-9-]{1,32}", text) is None:
        raise ValueError("must be lower-case letters, digits and hyphens")
    return text


def _url(text: str | None) -> str | None:
    if text is not None and re.fullmatch(r"https?://[^/\s?#]+(/[^\s?#]*)?", text) is None:
        raise ValueError("must be an http:// or https:// address")
    return text


_LAKE_ADDRESS = re.compile(r"(?i:s3a?)://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?|(?i:file):///.*")
"""With a bucket name as AWS allows it."""
_LIKE_AN_ADDRESS = re.compile(r".*://|[A-Za-z][A-Za-z0-9+.-]*:/")
"""Addresses, also those that lack a slash (`s3:/bucket`): they are not meant as folders."""


def _lake(text: str | None) -> str | None:
    if text == "" or (text and _LIKE_AN_ADDRESS.match(text) and not _LAKE_ADDRESS.fullmatch(text)):
        raise ValueError("must be a folder or s3://BUCKET/PREFIX")
    if text and (path := text.removeprefix("file://")) and "://" not in path:
        check_path(str(Path(path).absolute()))
    return text


def _networks(text: str) -> str:
    try:
        TrustedProxies(text)
    except ValueError as error:
        raise ValueError(
            f"must be addresses or CIDR blocks, separated by commas: {error}"
        ) from error
    return text


_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": DAY}


def seconds_of(duration: str) -> int:
    """A duration such as "90s", "15m", "1h" or "30d", in seconds. Raises ValueError."""
    number, unit = duration[:-1], _UNITS_S.get(duration[-1:])
    if unit is None or not (number.isascii() and number.isdecimal()) or len(number) > 6:
        raise ValueError('must be a number with s, m, h or d, such as "15m"')
    return int(number) * unit


def _duration(text: str | None) -> str | None:
    if text is not None and not seconds_of(text):
        raise ValueError("must be longer than nothing")
    return text


def _origins(text: str) -> str:
    try:
        AllowedOrigins(text)
    except ValueError as error:
        raise ValueError(f"must be origins, separated by commas: {error}") from error
    return text


def _workers(given: object) -> str:
    text = str(given)
    if text != "auto" and re.fullmatch(r"[1-9]|1[0-6]", text) is None:
        raise ValueError('must be a number from 1 to 16, or "auto"')
    return text


def _rate(text: str | None) -> str | None:
    if text is not None and re.fullmatch(r"[1-9][0-9]*/(second|minute|hour|day)", text) is None:
        raise ValueError('must be a number and a unit, such as "3000/second"')
    return text


class _ServiceSettings(BaseModel):
    """Everything that can be configured of any host."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True)

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 9324
    """Port to listen on; 0 picks a free one."""
    data: Path = Path(DEFAULT_DATA)
    """Folder of queues, messages and access keys; made if it does not exist."""
    shards: Annotated[int | None, Field(ge=1, le=SHARDS_MAX)] = None
    """Number of shards of a new data folder; each queue lies in one. By default 1, and 3 for a host
    of a cluster, one to lead for each of three hosts. A folder keeps its number, or gets more with
    `workers`. Several need durability fsync."""
    workers: Annotated[str, BeforeValidator(_workers)] = "1"
    """Processes that answer requests, up to 16, or "auto": one for each core. Each has a part of
    the shards; a folder gets as many shards as workers at least."""
    auth: AuthMode = AuthMode.SIGV4
    """Check of signatures; `open` checks none, and listens on loopback only."""
    durability: Durability = Durability.FSYNC
    """Failures that an acknowledged message survives."""
    account: Account = "000000000000"
    """Account of the first access key, and of unsigned requests in open mode; 12 digits."""
    region: Annotated[str, AfterValidator(_region)] = "us-east-1"
    """Region shown at first start, and of unsigned requests in open mode."""
    public_url: Annotated[str | None, AfterValidator(_url)] = None
    """Base of queue URLs; by default what the client's Host header says."""
    grafana_url: Annotated[str | None, AfterValidator(_url)] = None
    """Address of a Grafana with the dashboards of `deploy/grafana`, which the console links to."""
    accept_loss: Switch = Switch.OFF
    """Start on a folder that has less than was acknowledged: an old copy, or a file that was cut or
    damaged at its end."""
    disk_reserve_mib: Annotated[int, Field(ge=0)] = 128
    """MiB of free space below which sends are refused, while receives and deletes still pass; at
    least 16 a shard, and 32."""
    aws_waits: Switch = Switch.ON
    """AWS's waits of 60 s: between two purges, and before a deleted queue's name is used again."""
    master_key: SecretStr | None = None
    """Key that all others are kept under: base64 of 32 bytes, from HOLDFAST_MASTER_KEY only; else
    it is read from a file."""
    master_key_file: Path | None = None
    """File with the master key, for its owner only; by default `master.key` in the data folder,
    made at first start."""
    access_key_id: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9]{4,128}$")] = None
    """Id of an access key of the account that is known beforehand; by default the first start makes
    one."""
    secret_access_key: SecretStr | None = None
    """Its secret, 16 characters or more, from HOLDFAST_SECRET_ACCESS_KEY only."""
    queues: tuple[DeclaredQueue, ...] = ()
    """Queues that are made at start, or changed to what is said here."""
    users: tuple[DeclaredUser, ...] = ()
    """Users that are made at start, or changed to what is said here."""
    restore_deleted_s: Annotated[int, Field(ge=0, le=_RESTORE_S_MAX)] = 3600
    """Seconds in which a deleted queue or a purge can be undone; the messages take their space
    until then, or until the disk has less than twice its reserve."""
    account_rate: Annotated[str | None, AfterValidator(_rate)] = None
    """Requests an account may make, such as "3000/second"; above it they are throttled as by AWS.
    By default any."""
    queue_rate: Annotated[str | None, AfterValidator(_rate)] = None
    """Requests on the messages of one queue, such as "1000/second". By default any."""
    fifo_quotas: Switch = Switch.OFF
    """AWS's quotas: 300 calls a second for each action of a FIFO queue, or for each of
    its message groups."""
    lake: Annotated[str | None, AfterValidator(_lake)] = None
    """Folder or s3://BUCKET/PREFIX of the archive: messages that expire go there instead of being
    lost. By default none."""
    lake_umask: Annotated[str, Field(pattern=f"^{UMASK}$")] = OWNER_ONLY
    """Umask of new files and folders of a lake that is a folder: with "027" the group may read."""
    archive_bodies: Bodies = Bodies.READABLE
    """Form of archived messages of queues without a KmsMasterKeyId."""
    archive_keys: str = ""
    """KMS keys, separated by commas, whose messages are archived readable too, such as
    "alias/orders"."""
    archive_max_mib: Annotated[int, Field(ge=1)] = 4096
    """MiB on disk that may wait for the archive, which a lake that is away fills; from half of it
    on there are warnings."""
    archive_when_full: WhenFull = WhenFull.DISCARD
    """Fate of expired messages above that: removed without being archived, or kept in their
    queues."""
    archive_seal_s: Annotated[int, Field(ge=1)] = 60
    """Seconds after which what waits for the archive is written to the lake; sooner where it takes
    64 MiB."""
    archive_every: Annotated[str | None, AfterValidator(_duration)] = None
    """Interval of the archive and queue-age jobs on this machine, such as "15m"; by default
    something else runs them."""
    snapshot_every_s: Annotated[int, Field(ge=0)] = 300
    """Seconds between two snapshots of what waits, for the queue-age job; rarer where they take
    long, 0 for none."""
    log: LogFormat = LogFormat.JSON
    """Form of log lines."""
    audit: Switch = Switch.ON
    """Notes of administrative actions and denied calls in audit.log in the data folder: 6 files of
    16 MiB."""
    usage_days: Annotated[int, Field(ge=1)] = 400
    """Days for which `holdfast usage` knows what accounts did."""
    history_mib: Annotated[int, Field(ge=0)] = 256
    """Space for two weeks of charts in the data folder; above it, older hours get a point for ten
    minutes, then go. 0: charts begin anew with each start."""
    metrics_queues_max: Annotated[int, Field(ge=0)] = 500
    """Queues with metrics of their own; the fullest ones, the others are summed up."""
    metrics: Audience = Audience.LOOPBACK
    """Readers of /_holdfast/metrics, which names all queues."""
    tls_certificate: Path | None = None
    """PEM file with the certificate and those up to its authority; the port then speaks https only.
    Reloaded when the file changes."""
    tls_key: Path | None = None
    """PEM file with the certificate's key, without a password."""
    tls_client_ca: Path | None = None
    """PEM file of authorities; then every client needs a certificate that one of them signed."""
    trusted_proxies: Annotated[str, AfterValidator(_networks)] = ""
    """Addresses or CIDR blocks, separated by commas, whose X-Forwarded-For and -Proto are believed;
    none by default."""
    browser_origins: Annotated[str, AfterValidator(_origins)] = ""
    """Origins, separated by commas, whose pages may use the service from a browser (CORS), such as
    "https://app.example.com"; none by default. In open mode their pages need no keys."""
    connections_max: Annotated[int, Field(ge=1)] = 10_000
    """Open connections, about 10 KB each, 40 KB with TLS; fewer where the system allows fewer
    files. Above it the one that is idle longest ends, first those without any request; if none is
    idle, new ones get a 503."""
    request_timeout_s: Annotated[int, Field(ge=1)] = 20
    """Seconds in which a connection must begin its first request, a begun request must be complete,
    and a client must begin to read its answers."""
    client_bytes_per_s_min: Annotated[int, Field(ge=1)] = 16 << 10
    """Bytes a second a client must send and read at least once request_timeout_s is over: 7 MiB may
    take 8 minutes."""
    idle_timeout_s: Annotated[int, Field(ge=1)] = 120
    """Seconds without a further request after which a connection ends; longer than SDKs and
    balancers keep one, so they end it."""
    request_memory_bytes: Annotated[int, Field(ge=8 << 20)] = 256 << 20
    """Bytes of requests above 16 KiB being received and answered, and of answers above that are not
    read, all clients together; then they get a retriable 503, receives RequestThrottled."""
    waiting_polls_max: Annotated[int, Field(ge=1)] = 100_000
    """Requests under way above which long polls do not wait; those that find nothing get
    RequestThrottled."""


class Settings(ClusterSettings, SignInSettings, TraceSettings, WebhookSettings, _ServiceSettings):
    """Everything that can be configured."""

    @property
    def is_alone(self) -> bool:
        """True if one process has all shards and records: no worker beside it, and no other
        host."""
        return self.etcd is None and workers_of(self) == 1


@cache
def installed_version() -> str:
    """The package's; its metadata are read once."""
    return metadata.version("holdfast")


def workers_of(settings: Settings) -> int:
    """The number of processes that answer requests."""
    if settings.workers == "auto":
        return min(len(os.sched_getaffinity(0)), SHARDS_MAX)
    return int(settings.workers)


def shards_of(settings: Settings) -> int:
    """The number of shards of a new data folder."""
    if settings.etcd is not None:
        return settings.shards or CLUSTER_SHARDS
    return max(settings.shards or 1, workers_of(settings))


def scalar_fields() -> Iterator[tuple[str, type, object]]:
    """Name, type and default of each setting that can be a flag: all but secrets, lists and
    tables."""
    for name, field in Settings.model_fields.items():
        kinds = [kind for kind in get_args(field.annotation) if kind is not NoneType]
        kind = kinds[0] if kinds else field.annotation
        if isinstance(kind, type) and issubclass(kind, str | int | float | Path):
            yield name, kind, field.default


@cache
def descriptions() -> dict[str, str]:
    """The text below each setting. Only a help needs it: to read it from the source would be a
    tenth of the start of a command."""
    found: dict[str, str] = {}
    for kind in Settings.__bases__:
        (made,) = ast.parse(inspect.getsource(kind)).body
        assert isinstance(made, ast.ClassDef)
        for field, text in pairwise(made.body):
            match field, text:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(said))),
                ):
                    found[name] = inspect.cleandoc(said)
    return found


def load(flags: dict[str, Any], file: Path | None) -> Settings:
    """Load the settings.

    `flags` holds the given options; without `file`, HOLDFAST_CONFIG may name one. Raises
    ConfigRefused.
    """
    file = file_of(file)
    elsewhere = environment_settings() | flags
    try:
        return _checked(_from_file(file), elsewhere)
    except ConfigRefused as error:
        raise ConfigRefused(placed(str(error), file, elsewhere)) from error.__cause__


def file_of(given: Path | None) -> Path | None:
    """The configuration file: the given one, else what HOLDFAST_CONFIG names."""
    named = os.environ.get(_FILE_VARIABLE)
    return Path(named) if given is None and named else given


def _checked(from_file: dict[str, Any], elsewhere: dict[str, Any]) -> Settings:
    """The settings. Raises ConfigRefused, whose text begins with the key."""
    for name in _SECRETS & from_file.keys():
        raise ConfigRefused(f"{name}: comes from HOLDFAST_{name.upper()} only")
    try:
        settings = Settings(**from_file | elsewhere)
    except ValidationError as error:
        raise ConfigRefused(reason_of(error, Settings.model_fields, TABLES)) from error
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise ConfigRefused("tls_certificate: needs tls_key, and the other way round")
    if settings.archive_every is not None and settings.lake is None:
        raise ConfigRefused("archive_every: needs lake")
    if settings.tls_client_ca is not None and settings.tls_certificate is None:
        raise ConfigRefused("tls_client_ca: needs tls_certificate and tls_key")
    if (settings.access_key_id is None) is not (settings.secret_access_key is None):
        raise ConfigRefused(
            "access_key_id: needs HOLDFAST_SECRET_ACCESS_KEY too, and the other way round"
        )
    try:
        in_order(settings.queues)
    except ValueError as error:
        raise ConfigRefused(f"queues.{error}") from error
    if settings.auth is AuthMode.OPEN and not is_loopback(settings.host):
        raise ConfigRefused("auth: open mode listens on loopback only; use --host 127.0.0.1")
    _check_cluster(settings)
    if shards_of(settings) > 1 and settings.durability is not Durability.FSYNC:
        raise ConfigRefused("durability: must be fsync with several shards")
    return settings


def _refused_ports(name: str, address: str | None, workers: int) -> str:
    """The reason why workers cannot have the ports after that of an address; empty if they can."""
    if address is None or split_address(address)[1] + workers <= _PORTS:
        return ""
    return f"{name}: each of the {workers} workers needs a port, and there are none after it"


def _check_cluster(settings: Settings) -> None:
    wrong_oidc = wrong_sign_in(settings, is_open=settings.auth is AuthMode.OPEN)
    if (wrong := wrong_combination(settings) or wrong_webhook(settings) or wrong_oidc) is not None:
        raise ConfigRefused(wrong)
    if settings.etcd is None:
        return
    if settings.role is ProcessRole.GATEWAY and workers_of(settings) > 1:
        raise ConfigRefused("workers: a gateway is one process; start several, with other names")
    for name in ("peer_address", "peer_listen"):
        if (refused := _refused_ports(name, getattr(settings, name), workers_of(settings))) != "":
            raise ConfigRefused(refused)
    if settings.durability is not Durability.FSYNC:
        raise ConfigRefused("durability: must be fsync with etcd")
    if settings.master_key is None and settings.master_key_file is None:
        raise ConfigRefused(
            "etcd: needs master_key_file or HOLDFAST_MASTER_KEY, the same key on every host"
        )


def _from_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        with file.open("rb") as stream:
            return tomllib.load(stream)
    except OSError as error:
        raise ConfigRefused(f"cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigRefused(f"{file}: {error}") from error


def environment() -> Mapping[str, str]:
    """The environment, for secrets that declarations name."""
    return os.environ


def without_secrets() -> dict[str, str]:
    """The environment for processes that need none of the service's keys."""
    secrets = {f"{_PREFIX}{name.upper()}" for name in _SECRETS}
    return {name: value for name, value in os.environ.items() if name not in secrets}


def environment_settings() -> dict[str, str]:
    """The settings that the environment gives, as it has them."""
    return {
        name.removeprefix(_PREFIX).lower(): value
        for name, value in os.environ.items()
        if name.startswith(_PREFIX)
        and name not in {_FILE_VARIABLE, _NATIVE_VARIABLE, *_OF_THE_LAKE}
        and not _is_injected(name, value)
    }


def _is_injected(name: str, value: str) -> bool:
    """True for a variable that Kubernetes makes in every pod for a Service called `holdfast`."""
    rest = name.removeprefix(_PREFIX)
    return rest.startswith(("SERVICE_", "PORT_")) or value.startswith("tcp://")


_HEAD = """\
# holdfast.toml: every key with its default. `holdfast serve --config FILE` reads it; HOLDFAST_<KEY> in the
# environment goes before the file, a flag before both. A key that is not known stops the start.
# Written by `holdfast example-config`.
"""  # noqa: E501


def example_config() -> str:
    """The file's text: keys with a default are commented out with it, the others with nothing."""
    parts = [_HEAD]
    for name, _, default in scalar_fields():
        lines = textwrap.wrap(" ".join(descriptions()[name].split()), 110)
        parts.append(
            "\n".join([*(f"# {line}" for line in lines), f"# {name} = {_toml(default)}\n"])
        )
    return "\n".join(parts)


def _toml(value: object) -> str:
    if value is None:
        return '""'
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return json.dumps(str(Path(value)) if isinstance(value, Path) else str(value))
