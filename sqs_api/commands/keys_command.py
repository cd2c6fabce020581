"""`holdfast keys`: the named keys that KmsMasterKeyId means, and the master key."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from auth.envelope import KEY_BYTES, SealBroken
from cluster.keys.key_owners import OPERATIONS, Grant
from sqs_api.commands import command_options
from sqs_api.commands.terminal_tables import json_text

if TYPE_CHECKING:
    from cluster.keys.keyring import Keyring

_NAME = re.compile(r"(?!aws/)[A-Za-z0-9/_-]{1,250}")


@click.group()
@command_options.DATA
@command_options.CONFIG
@command_options.ACCOUNT
@click.pass_context
def keys(
    context: click.Context, data: Path | None, config_file: Path | None, account: str | None
) -> None:
    """Manage the keys that messages are encrypted under; a running server knows of changes at once.

    NAME is the alias of a key of the account, or a key's id.
    """

    @asynccontextmanager
    async def opened() -> AsyncIterator[tuple[Any, ...]]:
        settings = command_options.load(config_file, {"data": data})
        owner = command_options.account_of(settings, account)
        may_make = context.invoked_subcommand == "add"
        async with command_options.opened_keyring(settings, may_make=may_make) as (keyring, _):
            yield keyring, owner, settings

    context.obj = opened


@keys.command("list")
@command_options.AS_JSON
@command_options.pass_opened
async def list_keys(obj: Any, *, as_json: bool) -> None:
    """List the keys of all accounts, and whom they are granted to."""
    if as_json:
        listed = [
            {
                "name": key.name,
                "key_id": key.key_id,
                "account": key.account or None,
                "is_enabled": key.enabled,
                "versions": key.versions,
                "grants": {grant.grantee: list(grant.operations) for grant in key.grants},
            }
            for key in obj[0].names()
        ]
        click.echo(json_text(listed, indent=1))
        return
    for key in obj[0].names():
        state = "enabled" if key.enabled else "disabled"
        owner = key.account or "-"
        click.echo(f"{key.name}  {key.key_id}  {owner}  {state}  {key.versions} version(s)")
        for grant in key.grants:
            click.echo(f"    granted to {grant.grantee}: {', '.join(grant.operations)}")


@keys.command("add")
@click.argument("name")
@command_options.pass_opened
@command_options.audited
async def add(obj: Any, name: str) -> None:
    """Make a key of the account. Its queues can name it as KmsMasterKeyId: NAME, alias/NAME, or its
    id.

    Queues of other accounts name it by its ARN, and those who use them need a grant.
    """
    if _NAME.fullmatch(name) is None:
        raise command_options.Refused(
            "NAME: must be letters, digits or /_- and not begin with aws/"
        )
    try:
        key = await obj[0].add(name, obj[1])
    except (ValueError, SealBroken) as error:
        raise command_options.Refused(str(error)) from error
    click.echo(f"added {key.name} with the id {key.key_id}, of account {key.account}")


@keys.command("rotate")
@click.argument("name")
@click.option("--rewrap", is_flag=True, help="Wrap earlier data keys under the new version too.")
@command_options.pass_opened
@command_options.audited
async def rotate(obj: Any, name: str, *, rewrap: bool) -> None:
    """Give a key a new version. New messages are sealed under it; earlier ones stay readable."""
    keyring, key_id = _known(obj, name)
    try:
        await keyring.rotate(key_id)
        if rewrap:
            click.echo(f"{await keyring.rewrap(key_id)} data keys are under the new version")
    except SealBroken as error:
        raise command_options.Refused(str(error)) from error
    click.echo(f"rotated {name}")


@keys.command("disable")
@click.argument("name")
@command_options.pass_opened
@command_options.audited
async def disable(obj: Any, name: str) -> None:
    """Refuse to send and to read messages under a key, until it is enabled."""
    await _set_enabled(obj, name, enabled=False)


@keys.command("enable")
@click.argument("name")
@command_options.pass_opened
@command_options.audited
async def enable(obj: Any, name: str) -> None:
    """Allow a disabled key again."""
    await _set_enabled(obj, name, enabled=True)


async def _set_enabled(obj: Any, name: str, *, enabled: bool) -> None:
    keyring, key_id = _known(obj, name)
    try:
        await keyring.set_enabled(key_id, enabled)
    except ValueError as error:
        raise command_options.Refused(str(error)) from error
    click.echo(f"{'enabled' if enabled else 'disabled'} {name}")


@keys.command("grant")
@click.argument("name")
@click.option("--to", "grantee", required=True, help="Account, or the ARN of a user.")
@click.option(
    "--operation",
    "operations",
    multiple=True,
    type=click.Choice(OPERATIONS),
    help="What it allows; receiving needs Decrypt, sending both [both].",
)
@command_options.pass_opened
@command_options.audited
async def grant(obj: Any, name: str, grantee: str, operations: tuple[str, ...]) -> None:
    """Let another account use a key. Its users need policies that allow it, too, as on AWS."""
    keyring, key_id = _known(obj, name)
    made = Grant(grantee, operations or OPERATIONS)
    try:
        await keyring.grant(key_id, made)
    except ValueError as error:
        raise command_options.Refused(str(error)) from error
    click.echo(f"granted {name} to {grantee}: {', '.join(made.operations)}")


@keys.command("revoke")
@click.argument("name")
@click.option("--from", "grantee", required=True, help="Account, or the ARN of a user.")
@command_options.pass_opened
@command_options.audited
async def revoke(obj: Any, name: str, grantee: str) -> None:
    """Take back a grant."""
    keyring, key_id = _known(obj, name)
    try:
        await keyring.revoke(key_id, grantee)
    except ValueError as error:
        raise command_options.Refused(str(error)) from error
    click.echo(f"{name} is not granted to {grantee} any more")


@keys.command("change-master")
@click.option(
    "--to",
    "new_file",
    type=click.Path(path_type=Path),
    help="File with the new master key [a new one, in the place of master.key].",
)
@command_options.pass_opened
@command_options.audited
async def change_master(obj: Any, new_file: Path | None) -> None:
    """Wrap all keys under another master key. No message is written again, and a running server
    goes on.

    With --to, the next start must be told of that key: by --master-key-file, or
    HOLDFAST_MASTER_KEY.
    """
    from cluster.clock import SystemEntropy
    from cluster.keys.master_key import KeysUnusable, read_master_key, replace_master_key

    keyring, _, settings = obj
    try:
        if new_file is not None:
            await keyring.change_master(read_master_key(new_file))
            place = settings.data if settings.etcd is None else f"cluster {settings.cluster}"
            click.echo(f"the keys of {place} are under {new_file} from now on")
            return
        if settings.master_key is not None or settings.master_key_file is not None:
            raise command_options.Refused(
                "--to: needed, since the master key is not the folder's own"
            )
        secret = SystemEntropy().secret(KEY_BYTES)
        await replace_master_key(settings.data, secret, partial(keyring.change_master, secret))
    except (KeysUnusable, SealBroken) as error:
        raise command_options.Refused(str(error)) from error
    click.echo(f"the keys of {settings.data} are under a new master.key")


def _known(obj: Any, name: str) -> tuple[Keyring, str]:
    """The keyring, and the id of the key of that name. Raises Refused."""
    keyring, account, _ = obj
    try:
        return keyring, keyring.named(name, account).key_id
    except KeyError:
        raise command_options.Refused(f"no key {name} of account {account}") from None
