"""Refusals of a start: what a configuration, a data folder or a cluster makes impossible, in one
line."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES, EADDRINUSE
from pathlib import Path

from auth.envelope import SealBroken
from cluster.catalog.record_codec import CatalogUnreadable
from cluster.keys.identity_records import IdentitiesUnreadable
from cluster.keys.keyring import KeysAway
from cluster.keys.master_key import KeysUnusable
from cluster.members.leader_view import LeadersUnknown
from cluster.members.member_records import MembershipRefused
from cluster.shards.issued_ids import CatalogOlder
from sqs_api.archiving.service import LakeRefused
from sqs_api.gateway.audit import AuditUnusable
from sqs_api.http.tls import TlsUnusable
from sqs_api.settings.declaring import DeclarationRefused
from storage.engines.store import StoreFailed
from storage.files.folder import FolderRefused
from visibility.rows.row_codec import DamagedRecord

_REFUSALS = (
    FolderRefused,
    IdentitiesUnreadable,
    KeysAway,
    KeysUnusable,
    CatalogOlder,
    CatalogUnreadable,
    LakeRefused,
    DeclarationRefused,
    StoreFailed,
    DamagedRecord,
    TlsUnusable,
    AuditUnusable,
    MembershipRefused,
    LeadersUnknown,
)


class NodeRefused(Exception):
    """The service cannot start; the text says why in one line."""


@contextmanager
def refusals(data: Path) -> Iterator[None]:
    """Raise NodeRefused for what stops a start on a data folder."""
    try:
        yield
    except _REFUSALS as error:
        raise NodeRefused(str(error)) from error
    except SealBroken as error:
        raise NodeRefused(f"cannot use the keys of {data}: {error}") from error
    except sqlite3.Error as error:
        raise NodeRefused(f"cannot open the records of {data}: {error}") from error
    except OSError as error:  # a file where a folder belongs, rights, links to themselves
        place = error.filename or f"data folder {data}"
        raise NodeRefused(f"cannot use {place}: {error.strerror or error}") from error


@contextmanager
def refused_address(address: object, advice: str = "") -> Iterator[None]:
    """Raise NodeRefused if the address cannot be listened on; `advice` is for one in use."""
    try:
        yield
    except OSError as error:
        reason, *_ = (error.strerror or str(error)).split(" (while")  # the rest repeats it
        if error.errno in (EADDRINUSE, EACCES):
            reason += advice
        raise NodeRefused(f"cannot listen on {address}: {reason}") from error
