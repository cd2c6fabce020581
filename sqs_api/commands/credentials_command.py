"""`holdfast credentials`: access keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sqs_api.commands import command_options
from sqs_api.commands.terminal_tables import json_text

if TYPE_CHECKING:
    from auth.credentials import AccessKey

_USER = click.option("--user", "user_name", help="Whose key it is [the account's own].")
_SESSION_S_MAX = 36 * 3600
"""As long as AWS's temporary keys live at most."""


@click.group()
@command_options.DATA
@command_options.CONFIG
@click.pass_context
def credentials(context: click.Context, data: Path | None, config_file: Path | None) -> None:
    """Manage access keys; a running server knows of changes at once."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[tuple[Any, ...]]:
        settings = command_options.load(config_file, {"data": data})
        may_make = context.invoked_subcommand == "add"
        async with command_options.opened_identities(settings, may_make=may_make) as store:
            yield store, settings

    context.obj = opened


@credentials.command("list")
@command_options.AS_JSON
@command_options.pass_opened
async def list_keys(obj: Any, *, as_json: bool) -> None:
    """List keys, without secrets, and the days (of UTC) on which they were used last."""
    from cluster.clock import SystemClock
    from cluster.keys.identity_records import day_text

    now_s = SystemClock().wall_s()
    store = obj[0]
    days = store.key_uses()
    if as_json:
        listed = [
            {
                "access_key_id": key.access_key_id,
                "account": key.account,
                "user": key.user,
                "is_enabled": key.enabled,
                "expires_at_ms": key.expires_at_ms,
                "has_expired": key.has_expired(now_s),
                "is_temporary": key.session_token is not None,
                "last_used_on": day_text(days.get(key.access_key_id)),
            }
            for key in store.all_keys()
        ]
        click.echo(json_text(listed, indent=1))
        return
    for key in store.all_keys():
        whose = f"user/{key.user}" if key.user else key.principal
        used = day_text(days.get(key.access_key_id))
        state = _state(key, now_s) + (f"  used {used}" if used else "")
        click.echo(f"{key.access_key_id}  {key.account}  {whose}  {state}")


def _state(key: AccessKey, now_s: float) -> str:
    if not key.enabled:
        return "disabled"
    if key.expires_at_ms is None:
        return "enabled"
    when = datetime.fromtimestamp(key.expires_at_ms / 1000, UTC).isoformat(timespec="seconds")
    return f"{'expired' if key.has_expired(now_s) else 'expires'} {when}"


@credentials.command("add")
@command_options.ACCOUNT
@_USER
@click.option(
    "--expires-in",
    type=command_options.Lifetime(),
    help="How long it is valid, such as 90d [for ever].",
)
@command_options.pass_opened
@command_options.audited
async def add(
    obj: Any, account: str | None, user_name: str | None, expires_in: float | None
) -> str:
    """Make a key and show its secret once."""
    store, settings = obj
    owner = command_options.account_of(settings, account)
    user = None if user_name is None else command_options.user_of(store, owner, user_name)
    try:
        key = await store.add_key(owner, user, lifetime_s=expires_in)
    except ValueError as error:
        raise command_options.Refused(str(error)) from error
    command_options.show_key(key)
    return str(key.access_key_id)


@credentials.command("session")
@command_options.ACCOUNT
@_USER
@click.option(
    "--duration",
    type=command_options.Lifetime(),
    default="1h",
    show_default=True,
    help="How long it is valid.",
)
@command_options.pass_opened
@command_options.audited
async def session(obj: Any, account: str | None, user_name: str | None, duration: float) -> str:
    """Make a temporary key with a session token."""
    store, settings = obj
    if not 0 < duration <= _SESSION_S_MAX:
        raise command_options.Refused("--duration: must be at most 36h")
    owner = command_options.account_of(settings, account)
    user = None if user_name is None else command_options.user_of(store, owner, user_name)
    try:
        key = await store.add_session(owner, user, duration)
    except ValueError as error:
        raise command_options.Refused(str(error)) from error
    command_options.show_key(key)
    click.echo(f"# {_state(key, 0.0)}")
    return str(key.access_key_id)


@credentials.command("rotate")
@click.argument("access_key_id")
@click.option(
    "--overlap",
    type=command_options.Lifetime(),
    default="1h",
    show_default=True,
    help="How long the old key stays valid; 0s disables it at once.",
)
@command_options.pass_opened
@command_options.audited
async def rotate(obj: Any, access_key_id: str, overlap: float) -> str:
    """Make a successor for the same owner; the old key stays valid until everybody has it."""
    try:
        key = await obj[0].rotate_key(access_key_id, overlap)
    except ValueError as error:
        raise command_options.Refused(str(error)) from error
    if key is None:
        raise command_options.Refused(f"no access key {access_key_id}")
    command_options.show_key(key)
    return str(key.access_key_id)


@credentials.command("disable")
@click.argument("access_key_id")
@command_options.pass_opened
@command_options.audited
async def disable(obj: Any, access_key_id: str) -> None:
    """Refuse a key from now on."""
    if not await obj[0].set_key_enabled(access_key_id, False):
        raise command_options.Refused(f"no access key {access_key_id}")
    click.echo(f"disabled {access_key_id}")


@credentials.command("enable")
@click.argument("access_key_id")
@command_options.pass_opened
@command_options.audited
async def enable(obj: Any, access_key_id: str) -> None:
    """Allow a disabled key again."""
    if not await obj[0].set_key_enabled(access_key_id, True):
        raise command_options.Refused(f"no access key {access_key_id}")
    click.echo(f"enabled {access_key_id}")


@credentials.command("remove")
@click.argument("access_key_id")
@command_options.pass_opened
@command_options.audited
async def remove(obj: Any, access_key_id: str) -> None:
    """Forget a key."""
    if not await obj[0].remove_key(access_key_id):
        raise command_options.Refused(f"no access key {access_key_id}")
    click.echo(f"removed {access_key_id}")
