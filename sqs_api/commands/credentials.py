"""`holdfast credentials`: access keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sqs_api.commands.options import CONFIG, DATA, Refused, load, show_key
from visibility.naming import is_account


@click.group()
@DATA
@CONFIG
@click.pass_context
def credentials(context: click.Context, data: Path | None, config_file: Path | None) -> None:
    """Manage access keys; a running server sees changes within a second."""
    settings = load(config_file, {"data": data})
    if context.resilient_parsing or not context.invoked_subcommand:
        return
    from cluster.access_keys import AccessKeyStore, AccessKeysUnreadable
    from cluster.clock import SystemClock, SystemEntropy
    from storage.folder import FolderRefused, check_folder, is_unused, open_folder

    try:
        if context.invoked_subcommand == "add" and is_unused(settings.data):
            open_folder(settings.data)
        check_folder(settings.data)
        store = AccessKeyStore(settings.data, SystemClock(), SystemEntropy())
        context.call_on_close(store.close)
        store.all()
    except (FolderRefused, AccessKeysUnreadable) as error:
        raise Refused(str(error)) from error
    context.obj = (store, settings.account)


@credentials.command("list")
@click.pass_obj
def credentials_list(context: Any) -> None:
    """List keys, without secrets."""
    store, _ = context
    for key in store.all():
        state = "enabled" if key.enabled else "disabled"
        click.echo(f"{key.access_key_id}  {key.account}  {key.principal}  {state}")


@credentials.command("add")
@click.option("--account", help="Account of the key, 12 digits [the configured one].")
@click.pass_context
def credentials_add(context: click.Context, account: str | None) -> None:
    """Make a key and show its secret once."""
    store, default_account = context.obj
    if account is not None and not is_account(account):
        raise Refused("--account: must be 12 digits")
    show_key(store.add(account or default_account))


@credentials.command("rotate")
@click.argument("access_key_id")
@click.pass_obj
def credentials_rotate(context: Any, access_key_id: str) -> None:
    """Make a successor for the same user and disable the old key."""
    store, _ = context
    key = store.rotate(access_key_id)
    if key is None:
        raise Refused(f"no access key {access_key_id}")
    show_key(key)


@credentials.command("disable")
@click.argument("access_key_id")
@click.pass_obj
def credentials_disable(context: Any, access_key_id: str) -> None:
    """Refuse a key from now on."""
    store, _ = context
    if not store.disable(access_key_id):
        raise Refused(f"no access key {access_key_id}")
    click.echo(f"disabled {access_key_id}")
