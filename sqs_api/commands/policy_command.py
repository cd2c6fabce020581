"""`holdfast policy check`: may somebody do something, and why."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from auth.caller import Caller
from auth.caller import anonymous as nobody
from cluster.clock import SystemClock, SystemEntropy
from cluster.coordination.coordination import Record
from sqs_api.commands.command_options import CONFIG, DATA, Refused, account_of, load, user_of
from sqs_api.operators.permission_answers import (
    QuestionRefused,
    Target,
    Verdict,
    Wanted,
    judge,
    key_target,
    queue_target,
    wanted,
)
from sqs_api.settings.config import Settings

if TYPE_CHECKING:
    from cluster.keys.identity_store import IdentityStore
    from cluster.keys.keyring import Keyring

_REFUSED = 1


@click.group()
def policy() -> None:
    """Understand policies."""


@policy.command()
@DATA
@CONFIG
@click.option("--user", "user_name", help="The calling user [the account itself].")
@click.option("--account", help="The caller's account [the configured one].")
@click.option("--anonymous", is_flag=True, help="The caller has no signature.")
@click.option(
    "--action", required=True, help="Such as SendMessage, kms:Decrypt, or holdfast:Backup."
)
@click.option(
    "--queue",
    help="Name of a queue of the configured account, or an ARN; kms actions are about its key. "
    "Not for holdfast actions.",
)
@click.option(
    "--condition",
    "conditions",
    multiple=True,
    metavar="KEY=VALUE",
    help="Such as aws:SourceIp=10.0.0.1.",
)
def check(
    data: Path | None,
    config_file: Path | None,
    user_name: str | None,
    account: str | None,
    *,
    anonymous: bool,
    action: str,
    queue: str | None,
    conditions: tuple[str, ...],
) -> None:
    """Say whether a call is allowed and which policy decides. Ends with 1 if it is not.

    Reads the data folder, so a server need not run. Conditions see who asks, the queue's tags and
    the time of now; what else a request says, such as its address, is given by --condition.
    """
    settings = load(config_file, {"data": data})
    try:
        asked_for = wanted(action, queue, settings.account, settings.region)
        owner = account_of(settings, account)
        known = asyncio.run(_known(settings))
        user = None if user_name is None else user_of(known.identities, owner, user_name)
        if anonymous:
            caller = nobody(asked_for.region)
        else:
            caller = Caller(
                owner, asked_for.region, "" if user is None else user.user_id, user=user_name
            )
        target = _target(known, asked_for, caller)
    except QuestionRefused as error:
        raise Refused(f"--{error.option}: {error}") from error
    _explain(judge(asked_for, target, caller, user, conditions, SystemClock().wall_s()))


class _Known(NamedTuple):
    """A copy of what the service knows."""

    identities: IdentityStore
    keyring: Keyring
    queues: list[Record]


async def _known(settings: Settings) -> _Known:
    """Raises Refused."""
    from cluster.catalog.catalog_records import PREFIX as CATALOG
    from cluster.keys.identity_records import PREFIX, IdentitiesUnreadable
    from cluster.keys.identity_store import IdentityStore
    from cluster.keys.master_key import KeysUnusable
    from cluster.members.host_folder import refuse_member_folder
    from cluster.members.member_records import MembershipRefused
    from sqs_api.commands.opened_records import copied_records
    from sqs_api.settings.key_stores import open_keyring
    from storage.files.folder import FolderRefused, check_folder

    clock, entropy = SystemClock(), SystemEntropy()
    try:
        if settings.etcd is None:
            check_folder(settings.data)
            refuse_member_folder(settings.data)
        copied = await asyncio.to_thread(copied_records, settings)
        keyring = await open_keyring(settings, copied.below, clock, entropy, founds=False)
        secrets = keyring.secrets
        identities = await IdentityStore.open(copied.below(PREFIX), secrets, clock, entropy)
    except (FolderRefused, KeysUnusable, IdentitiesUnreadable, MembershipRefused) as error:
        raise Refused(str(error)) from error
    return _Known(identities, keyring, (await copied.below(CATALOG).read_all()).records)


def _target(known: _Known, asked_for: Wanted, caller: Caller) -> Target:
    """The queue, key or service that the action is about. Raises Refused, QuestionRefused."""
    if asked_for.queue is None:
        return Target(asked_for.resource, asked_for.account)
    attributes, tags = _queue_row(known.queues, asked_for)
    if not asked_for.is_of_key:
        return queue_target(asked_for, attributes, tags)
    return key_target(asked_for, attributes.get("KmsMasterKeyId"), caller, known.keyring.find)


def _explain(verdict: Verdict) -> None:
    answer = "allowed" if verdict.allowed else "denied"
    click.echo(f"{answer}: {verdict.who or 'nobody'} {verdict.action} {verdict.resource}")
    click.echo(verdict.rule)
    if verdict.decided_by:
        click.echo(f"decided by: {verdict.decided_by}")
    if not verdict.allowed:
        raise click.exceptions.Exit(_REFUSED)


def _queue_row(queues: list[Record], asked_for: Wanted) -> tuple[dict[str, str], dict[str, str]]:
    """The queue's attributes and tags as the catalog has them now. Raises Refused."""
    from cluster.catalog.catalog_records import queue_key
    from cluster.catalog.record_codec import CatalogUnreadable, StoredQueue, stored_entry

    account, region, name = asked_for.account, asked_for.region, asked_for.queue
    records = {record.key: record.value for record in queues}
    key = queue_key((account, region, name or ""))
    try:
        queue = stored_entry(key, records[key]) if key in records else None
    except CatalogUnreadable as error:
        raise Refused(str(error)) from error
    if not isinstance(queue, StoredQueue):
        raise Refused(f"there is no queue {name} of account {account} in {region}")
    return queue.attributes, queue.tags
