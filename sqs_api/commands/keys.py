"""`holdfast keys`: the named keys that KmsMasterKeyId means, and the master key."""

from __future__ import annotations

import re
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import click

from auth.envelope import KEY_BYTES, SealBroken
from sqs_api.commands.options import CONFIG, DATA, Refused, audited, load, opened_keyring

_NAME = re.compile(r"(?!aws/)[A-Za-z0-9/_-]{1,250}")


@click.group()
@DATA
@CONFIG
@click.pass_context
def keys(context: click.Context, data: Path | None, config_file: Path | None) -> None:
    """Manage the keys that messages are encrypted under; a running server sees changes within a second."""
    settings = load(config_file, {"data": data})
    if context.resilient_parsing or not context.invoked_subcommand:
        return
    may_make = context.invoked_subcommand == "add"
    context.obj = (context.with_resource(opened_keyring(settings, may_make=may_make)), settings)


@keys.command("list")
@click.pass_obj
def list_keys(obj: Any) -> None:
    """List the keys."""
    for key in obj[0].names():
        state = "enabled" if key.enabled else "disabled"
        click.echo(f"{key.name}  {key.key_id}  {state}  {key.versions} version(s)")


@keys.command("add")
@click.argument("name")
@click.pass_obj
@audited
def add(obj: Any, name: str) -> None:
    """Make a key that queues can name as KmsMasterKeyId: NAME, alias/NAME, or its id."""
    if _NAME.fullmatch(name) is None:
        raise Refused("NAME: must be letters, digits or /_- and not begin with aws/")
    try:
        key = obj[0].add(name)
    except (ValueError, SealBroken, sqlite3.Error) as error:
        raise Refused(str(error)) from error
    click.echo(f"added {key.name} with the id {key.key_id}")


@keys.command("rotate")
@click.argument("name")
@click.option("--rewrap", is_flag=True, help="Wrap earlier data keys under the new version too.")
@click.pass_obj
@audited
def rotate(obj: Any, name: str, *, rewrap: bool) -> None:
    """Give a key a new version. New messages are sealed under it; earlier ones stay readable."""
    _known(obj, name)
    try:
        obj[0].rotate(name)
        if rewrap:
            click.echo(f"{obj[0].rewrap(name)} data keys are under the new version")
    except (SealBroken, sqlite3.Error) as error:
        raise Refused(str(error)) from error
    click.echo(f"rotated {name}")


@keys.command("disable")
@click.argument("name")
@click.pass_obj
@audited
def disable(obj: Any, name: str) -> None:
    """Refuse to send and to read messages under a key, until it is enabled."""
    _set_enabled(obj, name, enabled=False)


@keys.command("enable")
@click.argument("name")
@click.pass_obj
@audited
def enable(obj: Any, name: str) -> None:
    """Allow a disabled key again."""
    _set_enabled(obj, name, enabled=True)


def _set_enabled(obj: Any, name: str, *, enabled: bool) -> None:
    _known(obj, name)
    try:
        obj[0].set_enabled(name, enabled)
    except ValueError as error:
        raise Refused(str(error)) from error
    click.echo(f"{'enabled' if enabled else 'disabled'} {name}")


@keys.command("change-master")
@click.option(
    "--to",
    "new_file",
    type=click.Path(path_type=Path),
    help="File with the new master key [a new one, in the place of master.key].",
)
@click.pass_obj
@audited
def change_master(obj: Any, new_file: Path | None) -> None:
    """Wrap all keys under another master key. No message is written again, and a running server goes on.

    With --to, the next start must be told of that key: by --master-key-file, or HOLDFAST_MASTER_KEY.
    """
    from cluster.clock import SystemEntropy
    from cluster.master_key import KeysUnusable, read_master_key, replace_master_key

    keyring, settings = obj
    try:
        if new_file is not None:
            keyring.change_master(read_master_key(new_file))
            click.echo(f"the keys of {settings.data} are under {new_file} from now on")
            return
        if settings.master_key is not None or settings.master_key_file is not None:
            raise Refused("--to: needed, since the master key is not the folder's own")
        secret = SystemEntropy().secret(KEY_BYTES)
        replace_master_key(settings.data, secret, partial(keyring.change_master, secret))
    except (KeysUnusable, SealBroken, sqlite3.Error) as error:
        raise Refused(str(error)) from error
    click.echo(f"the keys of {settings.data} are under a new master.key")


def _known(obj: Any, name: str) -> None:
    if name not in {key.name for key in obj[0].names()}:
        raise Refused(f"no key {name}")
