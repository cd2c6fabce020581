"""Roles: policies for people who watch or operate the service, by name. A user with one needs no
policy written by hand; the policy is the user's own and may be changed afterwards.

Users, keys and policies stay with the root of the account, whatever a role allows.
"""

from __future__ import annotations

import json
from typing import TypedDict

from sqs_api.admin import routes
from sqs_api.admin.asked import Asked
from sqs_api.operators.operator_context import OperatorContext
from visibility.contract.errors import InvalidParameterValue

_LOOKS = (routes.LIST_QUEUES, routes.GET_QUEUE, routes.BROWSE_MESSAGES, routes.READ_CLUSTER)
_READS = (*_LOOKS, routes.READ_BODIES, "kms:Decrypt")
_OPERATES = (
    *_READS,
    routes.DELETE_MESSAGES,
    routes.HOLD_MESSAGES,
    routes.REDRIVE_MESSAGES,
    routes.SEND,
    "kms:GenerateDataKey",
    routes.LIST_DELETED_QUEUES,
    routes.RESTORE_QUEUE,
    routes.READ_AUDIT,
    routes.ADD_MARK,
)


class Role(TypedDict):
    """A role, what it is for, and its policy as a JSON text."""

    name: str
    meaning: str
    document: str


def _role(name: str, meaning: str, *actions: str) -> Role:
    statement = {"Sid": name.replace("-", ""), "Effect": "Allow", "Action": [*actions]}
    document = {"Version": "2012-10-17", "Statement": [{**statement, "Resource": "*"}]}
    return {"name": name, "meaning": meaning, "document": json.dumps(document, indent=2)}


ROLES = (
    _role("watcher", "sees queues and messages, but no bodies", *_LOOKS),
    _role("viewer", "sees queues and messages with their bodies", *_READS),
    _role(
        "operator",
        "also redrives, holds, edits and deletes messages, restores queues, reads the audit log",
        *_OPERATES,
    ),
    _role(
        "admin",
        "also creates, changes and deletes queues; users and keys stay with the account's root",
        "sqs:*",
        "holdfast:*",
        "kms:*",
    ),
)


def role_of(name: str) -> Role:
    """The role of that name. Raises InvalidParameterValue."""
    for role in ROLES:
        if role["name"] == name:
            return role
    names = ", ".join(role["name"] for role in ROLES)
    raise InvalidParameterValue(f"There is no role {name}: the roles are {names}.")


async def list_roles(context: OperatorContext, asked: Asked) -> list[Role]:
    """The roles that a new user may get, the weakest first."""
    return [*ROLES]


ROUTES = (routes.Route("GET", "api/roles", routes.READ_USERS, list_roles),)
