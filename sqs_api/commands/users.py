"""`holdfast users`: who there is beside the accounts themselves, and what their policies let them
do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click

from sqs_api.commands import command_options
from sqs_api.commands.terminal_tables import json_text


@click.group()
@command_options.DATA
@command_options.CONFIG
@command_options.ACCOUNT
@click.pass_context
def users(
    context: click.Context, data: Path | None, config_file: Path | None, account: str | None
) -> None:
    """Manage users and their policies; a running server knows of changes at once."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[tuple[Any, ...]]:
        settings = command_options.load(config_file, {"data": data})
        owner = command_options.account_of(settings, account)
        may_make = context.invoked_subcommand == "add"
        async with command_options.opened_identities(settings, may_make=may_make) as store:
            yield store, owner, settings

    context.obj = opened


@users.command("list")
@command_options.AS_JSON
@command_options.pass_opened
async def list_users(obj: Any, *, as_json: bool) -> None:
    """List the users of all accounts."""
    if as_json:
        listed = [
            {
                "arn": user.arn,
                "user_id": user.user_id,
                "tags": dict(user.tags),
                "policies": [policy.name for policy in user.policies],
            }
            for user in obj[0].users()
        ]
        click.echo(json_text(listed, indent=1))
        return
    for user in obj[0].users():
        policies = ", ".join(policy.name for policy in user.policies) or "no policies"
        click.echo(f"{user.arn}  {user.user_id}  {policies}")


@users.command("add")
@click.argument("name")
@click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="For aws:PrincipalTag/KEY.")
@command_options.pass_opened
@command_options.audited
async def add(obj: Any, name: str, tags: tuple[str, ...]) -> None:
    """Make a user, who may do nothing until a policy says so."""
    store, account, _ = obj
    try:
        user = await store.add_user(account, name, _tags(tags))
    except ValueError as error:
        raise command_options.Refused(str(error)) from error
    click.echo(f"added {user.arn}")


def _tags(given: tuple[str, ...]) -> dict[str, str]:
    for text in given:
        if not text.partition("=")[1]:
            raise command_options.Refused(f"--tag: must be KEY=VALUE, not {text}")
    return {text.partition("=")[0]: text.partition("=")[2] for text in given}


@users.command("remove")
@click.argument("name")
@command_options.pass_opened
@command_options.audited
async def remove(obj: Any, name: str) -> None:
    """Forget a user with policies and access keys."""
    store, account, _ = obj
    user = command_options.user_of(store, account, name)
    await store.remove_user(user)
    click.echo(f"removed {user.arn}")


@users.command("show")
@click.argument("name")
@command_options.pass_opened
async def show(obj: Any, name: str) -> None:
    """Show a user's policies."""
    store, account, _ = obj
    user = command_options.user_of(store, account, name)
    click.echo(f"{user.arn}  {user.user_id}")
    for key, value in user.tags.items():
        click.echo(f"tag {key} = {value}")
    for policy, document in store.policies(user).items():
        click.echo(f"policy {policy}\n{document.strip()}")


@users.command("put-policy")
@click.argument("name")
@click.argument("policy_name")
@click.argument("document", type=click.File())
@command_options.pass_opened
@command_options.audited
async def put_policy(obj: Any, name: str, policy_name: str, document: Any) -> None:
    """Give a user the policy in the file DOCUMENT (- for standard input)."""
    from auth.policy_document import PolicyRefused

    store, account, _ = obj
    user = command_options.user_of(store, account, name)
    try:
        await store.put_policy(user, policy_name, document.read())
    except (PolicyRefused, UnicodeDecodeError) as error:
        raise command_options.Refused(f"{document.name}: {error}") from error
    click.echo(f"{user.arn} has the policy {policy_name}")


@users.command("remove-policy")
@click.argument("name")
@click.argument("policy_name")
@command_options.pass_opened
@command_options.audited
async def remove_policy(obj: Any, name: str, policy_name: str) -> None:
    """Take a policy from a user."""
    store, account, _ = obj
    if not await store.remove_policy(command_options.user_of(store, account, name), policy_name):
        raise command_options.Refused(f"user {name} has no policy {policy_name}")
    click.echo(f"removed {policy_name}")
