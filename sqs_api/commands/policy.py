"""`holdfast policy check`: may somebody do something, and why."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import click

from auth.caller import Caller
from auth.caller import anonymous as nobody
from auth.policy import Asked, Decision, Principal, decide
from auth.policy_document import Kind, PolicyRefused, read_policy
from cluster.clock import SystemClock
from sqs_api.admin_actions import ADMIN_ACTIONS
from sqs_api.commands.options import (
    CONFIG,
    DATA,
    Refused,
    account_of,
    load,
    opened_identities,
    user_of,
)
from sqs_api.config import Settings
from visibility.naming import parse_arn
from visibility.operations import ACTIONS

_REFUSED = 1


@click.group()
def policy() -> None:
    """Understand policies."""


@policy.command()
@DATA
@CONFIG
@click.option("--user", "user_name", help="Who asks: a user [the account itself].")
@click.option("--account", help="Whose user, or which account [the configured one].")
@click.option("--anonymous", is_flag=True, help="Who asks: nobody, without a signature.")
@click.option("--action", required=True, help="Such as SendMessage, or holdfast:Backup.")
@click.option(
    "--queue",
    help="Name of a queue of the configured account, or an ARN; not for holdfast actions.",
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

    Reads the data folder, so a server need not run. Conditions see who asks, the queue's tags and the time of now; what else
    a request says, such as its address, is given by --condition.
    """
    from sqs_api.access import said_of_caller

    settings = load(config_file, {"data": data})
    asked_for = _asked_for(settings, action, queue)
    with opened_identities(settings) as store:
        owner = account_of(settings, account)
        user = None if user_name is None else user_of(store, owner, user_name)
    if anonymous:
        caller = nobody(asked_for.region)
    else:
        caller = Caller(
            owner, asked_for.region, "" if user is None else user.user_id, user=user_name
        )
    principal = Principal(caller.account, caller.arn, caller.principal, caller.user)
    text, tags = _queue_policy(settings, asked_for)
    try:
        queue_policy = None if text is None else read_policy(text, Kind.QUEUE)
    except PolicyRefused as error:
        raise Refused(f"the policy of {queue}: {error}") from error
    said = {k: v for k, v in said_of_caller(caller, user, tags, SystemClock().wall_s()) if v[0]}
    keys = said | {
        key.lower(): (value,) for key, _, value in (text.partition("=") for text in conditions)
    }
    asked = Asked(principal, asked_for.action, asked_for.resource, asked_for.account, lambda: keys)
    decision = decide(asked, () if user is None else user.policies, queue_policy)
    _explain(asked, decision)


class _AskedFor(NamedTuple):
    action: str
    resource: str
    account: str
    region: str
    queue: str | None


def _asked_for(settings: Settings, action: str, queue: str | None) -> _AskedFor:
    """The permission in question, and the resource it is needed on. Raises Refused."""
    if action in ADMIN_ACTIONS:
        return _AskedFor(action, "*", settings.account, settings.region, None)
    prefix, _, name = action.rpartition(":")
    if prefix.lower() not in ("", "sqs") or name not in ACTIONS:
        raise Refused(f"--action: there is no action {action}")
    if queue is None:
        raise Refused("--queue: is needed for this action")
    resource = queue
    if not queue.startswith("arn:"):
        resource = f"arn:aws:sqs:{settings.region}:{settings.account}:{queue}"
    parsed = parse_arn(resource)
    if parsed is None:
        raise Refused(f"--queue: {queue} names no queue")
    single = f"sqs:{name.removesuffix('Batch')}"
    return _AskedFor(single, resource, parsed.account, parsed.region, parsed.name)


def _explain(asked: Asked, decision: Decision) -> None:
    who = asked.principal.arn or "nobody"
    verdict = "allowed" if decision.allowed else "denied"
    click.echo(f"{verdict}: {who} {asked.action} {asked.resource}")
    click.echo(decision.rule.value.format(action=asked.action))
    if decision.source:
        click.echo(f"decided by: {decision.source}")
    if not decision.allowed:
        raise click.exceptions.Exit(_REFUSED)


def _queue_policy(settings: Settings, asked_for: _AskedFor) -> tuple[str | None, dict[str, str]]:
    """The queue's policy as the catalog has it now, None if it has none; and its tags. Raises Refused."""
    from cluster.catalog import CATALOG_FILE

    account, region, name = asked_for.account, asked_for.region, asked_for.queue
    if name is None:
        return None, {}
    file = settings.data / CATALOG_FILE
    query = "SELECT attributes, tags FROM queues WHERE account = ? AND region = ? AND name = ?"
    try:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
            row = database.execute(query, (account, region, name)).fetchone()
    except sqlite3.Error as error:
        raise Refused(f"cannot read {file}: {error}") from error
    if row is None:
        raise Refused(f"there is no queue {name} of account {account} in {region}")
    return json.loads(row[0]).get("Policy"), json.loads(row[1])
