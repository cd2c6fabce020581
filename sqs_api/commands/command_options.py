"""Shared parts of the commands: refusals in one line, settings from flags, environment and file,
and times as options."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from typing_extensions import override

from cluster.clock import SystemClock
from sqs_api.settings import config
from sqs_api.settings.config import ConfigRefused, Settings, Switch, scalar_fields, shards_of
from visibility.contract.naming import is_account


class _At(click.ParamType[int]):
    """A duration such as 2h, which ended now or (`is_ahead`) begins now, or a date and time of UTC;
    in milliseconds."""

    name = "time"

    def __init__(self, *, is_ahead: bool = False) -> None:
        self._sign = 1 if is_ahead else -1

    @override
    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        try:
            return int((SystemClock().wall_s() + self._sign * config.seconds_of(value)) * 1000)
        except ValueError:
            pass
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value} is neither a duration such as 2h nor a time", param, context)
        return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


AT = _At()
AHEAD = _At(is_ahead=True)


if TYPE_CHECKING:
    from auth.identities import User
    from cluster.keys.identity_store import IdentityStore
    from cluster.keys.keyring import Keyring
    from sqs_api.commands.page_client import AdminClient
    from sqs_api.settings.key_stores import Below

CONFIG = click.option(
    "--config", "config_file", type=click.Path(path_type=Path), help="TOML file [HOLDFAST_CONFIG]."
)
DATA = click.option("--data", type=click.Path(path_type=Path), help="Data folder.")


URL = click.option(
    "--url", help="Address of the service [AWS_ENDPOINT_URL, else as noted in the data folder]."
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="The list as JSON, for scripts.")
ACCOUNT = click.option("--account", help="Account, 12 digits [the configured one].")


def setting_flags(without: Collection[str] = ()) -> list[click.Parameter]:
    """A flag for each setting but these."""
    return [_Flag(*field) for field in scalar_fields() if field[0] not in without]


class _Flag(click.Option):
    """The flag of one setting. The settings do all further checks: there is one judge of values."""

    def __init__(self, setting: str, kind: type, default: object) -> None:
        parsed: Any = str
        if issubclass(kind, StrEnum):
            parsed = click.Choice([value.value for value in kind])
        super().__init__([f"--{setting.replace('_', '-')}"], type=parsed)
        self._setting = setting
        self._shown = "" if default is None else f" [{default}]"

    @override
    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        self.help = f"{config.descriptions()[self._setting]}{self._shown}"
        return super().get_help_record(ctx)


class Refused(click.ClickException):
    """Wrong use, in one line."""

    exit_code = 2


class Failed(click.ClickException):
    """The right use, which failed, in one line."""

    exit_code = 1


def load(config_file: Path | None, flags: dict[str, Any]) -> Settings:
    """The settings; flags that were not given are None. Raises Refused."""
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return config.load(given, config_file)
    except ConfigRefused as error:
        raise Refused(str(error)) from error


def show_key(key: Any) -> None:
    """An access key as lines for a shell."""
    click.echo(f"export AWS_ACCESS_KEY_ID={key.access_key_id}")
    click.echo(f"export AWS_SECRET_ACCESS_KEY={key.secret_access_key}")
    if key.session_token is not None:
        click.echo(f"export AWS_SESSION_TOKEN={key.session_token}")


def show_place(region: str, url: str) -> None:
    """A service's region and address as lines for a shell, in which `holdfast` works from then
    on."""
    click.echo(f"export AWS_DEFAULT_REGION={region}")
    click.echo(f"export AWS_REGION={region}")
    click.echo(f"export AWS_ENDPOINT_URL={url}")
    click.echo(f"# {_WITHOUT_IT}")
    program = Path(sys.executable).with_name("holdfast")
    if program.exists() and shutil.which("holdfast") is None:
        click.echo(f'export PATH="$PATH":{shlex.quote(str(program.parent))}')


_WITHOUT_IT = (
    "AWS CLI 1, and 2 before 2.13, do not read it for SQS: "
    'aws --endpoint-url "$AWS_ENDPOINT_URL" sqs list-queues'
)


class Lifetime(click.ParamType[float]):
    """A duration such as 90s, 15m, 1h or 30d; in seconds."""

    name = "duration"

    @override
    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> float:
        if isinstance(value, int | float):
            return value
        try:
            return config.seconds_of(value)
        except ValueError as error:
            self.fail(str(error), param, context)


@asynccontextmanager
async def opened_keyring(
    settings: Settings, *, may_make: bool
) -> AsyncIterator[tuple[Keyring, Below]]:
    """The keys of a cluster or of a data folder, and the records they are in; with `may_make` an
    unused folder becomes one. Raises Refused."""
    from cluster.clock import SystemClock, SystemEntropy
    from cluster.keys.keyring import KeysAway
    from cluster.keys.master_key import KeysUnusable
    from cluster.members.host_folder import refuse_member_folder
    from cluster.members.member_records import MembershipRefused
    from sqs_api.commands.opened_records import opened_records
    from sqs_api.settings.key_stores import open_keyring
    from storage.files.folder import FolderRefused, check_folder, is_unused, open_folder

    is_single = settings.etcd is None
    try:
        if is_single:
            if may_make and is_unused(settings.data):
                open_folder(settings.data, shards_of(settings))
            check_folder(settings.data)
            refuse_member_folder(settings.data)
        async with opened_records(settings) as below:
            clock, entropy = SystemClock(), SystemEntropy()
            keyring = await open_keyring(settings, below, clock, entropy, founds=is_single)
            try:
                yield keyring, below
            finally:
                await keyring.close()
    except (FolderRefused, KeysUnusable, KeysAway, MembershipRefused) as error:
        raise Refused(str(error)) from error


@asynccontextmanager
async def opened_identities(settings: Settings, *, may_make: bool) -> AsyncIterator[IdentityStore]:
    """The users and access keys of a cluster or of a data folder. Raises Refused."""
    from cluster.clock import SystemClock, SystemEntropy
    from cluster.keys.identity_records import PREFIX, IdentitiesUnreadable
    from cluster.keys.identity_store import IdentityStore

    async with opened_keyring(settings, may_make=may_make) as (keyring, below):
        try:
            store = await IdentityStore.open(
                below(PREFIX), keyring.secrets, SystemClock(), SystemEntropy()
            )
            store.all_keys()
            yield store
        except IdentitiesUnreadable as error:
            raise Refused(str(error)) from error


def admin_client(url: str | None, data: Path | None, region: str | None = None) -> AdminClient:
    """A client of the service named by the options or their defaults. Raises Refused."""
    from sqs_api.commands.page_client import AdminClient
    from sqs_api.settings.service_place import PlaceUnknown, find_place, key_of_environment

    environment = config.environment()
    try:
        place = find_place(url, data, environment, lambda: key_of_environment(environment))
    except PlaceUnknown as error:
        raise Refused(str(error)) from error
    return AdminClient(place, region)


def shown_queues(queues: int, deleted: int) -> str:
    """The counts of queues, worded alike by all commands."""
    return f"{queues} queues" + (f" and {deleted} deleted ones" if deleted else "")


def account_of(settings: Settings, account: str | None) -> str:
    """The account that was given, or the configured one. Raises Refused."""
    if account is not None and not is_account(account):
        raise Refused("--account: must be 12 digits")
    return account or settings.account


def user_of(store: IdentityStore, account: str, name: str) -> User:
    """The user of that name. Raises Refused."""
    user = store.users().find(account, name)
    if user is None:
        raise Refused(f"no user {name} in account {account}")
    return user


def pass_opened(command: Callable[..., Awaitable[object]]) -> Callable[..., None]:
    """As click.pass_obj, for a group whose object is a function that opens what its commands work
    on: an asynchronous context of a tuple whose last part are the settings.

    It runs once the command's own arguments are read, so that --help and wrong uses touch no
    folder. Errors of the folder's databases are refusals.
    """
    from storage.files.refusing_disk import naming_disk

    async def work(given: dict[str, Any]) -> None:
        async with click.get_current_context().obj() as opened:
            with naming_disk(opened[-1].data):
                await command(opened, **given)

    @wraps(command)
    def run(**given: Any) -> None:
        try:
            asyncio.run(work(given))
        except sqlite3.Error as error:
            raise Refused(str(error)) from error

    return run


def audited(command: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[None]]:
    """Note in the audit log the command's changes and the user of this machine who ran it.

    The command's object ends with the settings; its result is noted as the thing it made.
    """

    @wraps(command)
    async def run(obj: tuple[Any, ...], **given: Any) -> None:
        made = await command(obj, **given)
        context = click.get_current_context()
        parent = context.parent.info_name if context.parent is not None else ""
        shown = {
            name: value for name, value in given.items() if isinstance(value, str | float | bool)
        }
        note(obj[-1], f"{parent} {context.info_name}", made=made, **shown)

    return run


def note(settings: Settings, event: str, **fields: Any) -> None:
    """Record an action that was done without the service."""
    from cluster.clock import SystemClock
    from sqs_api.gateway.audit import FILE_NAME, audit_line
    from sqs_api.settings.service_note import login_name

    if settings.audit is Switch.OFF:
        return
    who = {"uid": os.getuid(), "login": login_name()}
    line = audit_line(SystemClock().wall_s(), event, **who, **fields)
    try:
        with (settings.data / FILE_NAME).open("a", encoding="utf-8") as log:
            log.write(line + "\n")
    except OSError as error:
        click.echo(f"holdfast: not in the audit log: {error.strerror}", err=True)
