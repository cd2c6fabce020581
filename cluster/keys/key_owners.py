"""Named keys, their owners, and the grants by which others may use them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import msgspec

OPERATIONS = ("Decrypt", "GenerateDataKey")
"""Operations that a grant may allow: receiving needs the first, sending both."""
_GRANTEE = re.compile(r"[0-9]{12}|arn:aws:iam::[0-9]{12}:(root|user/[A-Za-z0-9+=,.@_-]{1,64})")


class Grant(NamedTuple):
    """Permission to use a key; `grantee` is an account, or the ARN of a user."""

    grantee: str
    operations: tuple[str, ...]


class NamedKey(msgspec.Struct):
    """A key that queues name. Changes are made in place."""

    name: str
    """The alias, which is unique in its account."""
    key_id: str
    row: str
    """Its place among the records: account and name."""
    account: str = ""
    """The owner; empty for the built-in key, and for keys of version 0.1 until a service opens
    them."""
    enabled: bool = True
    version: int = 0
    """The newest version."""
    versions: int = 0
    grants: tuple[Grant, ...] = ()
    policy: str | None = None
    """The grants as a resource-based policy."""


class KeyPlace(NamedTuple):
    """A parsed KmsMasterKeyId; `account` is empty unless it is an ARN."""

    account: str
    name: str
    """The alias or the id."""


@lru_cache(maxsize=4096)
def key_place(reference: str) -> KeyPlace:
    """Read `NAME`, `alias/NAME`, a key id, or an ARN that ends with `alias/NAME` or `key/ID`."""
    parts = reference.split(":")
    account = parts[4] if parts[0] == "arn" and len(parts) == 6 else ""
    return KeyPlace(account, parts[-1].removeprefix("alias/").removeprefix("key/"))


def check_grant(grant: Grant) -> None:
    """Raise ValueError for an impossible grantee or operation."""
    if _GRANTEE.fullmatch(grant.grantee) is None:
        raise ValueError(f"{grant.grantee} is no account of 12 digits and no ARN of a user")
    if not grant.operations or not set(grant.operations) <= set(OPERATIONS):
        raise ValueError(f"operations are {' and '.join(OPERATIONS)}")


def policy_of(grants: Iterable[Grant]) -> str | None:
    """The grants as a resource-based policy; None if there are none."""
    statements = [
        {
            "Sid": f"grant to {grant.grantee}",
            "Effect": "Allow",
            "Principal": {"AWS": grant.grantee},
            "Action": [f"kms:{operation}" for operation in grant.operations],
        }
        for grant in grants
    ]
    return json.dumps({"Statement": statements}) if statements else None
