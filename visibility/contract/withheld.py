"""Messages that an operator withholds: put aside with an owner, or deleted after a while. Values
only."""

from __future__ import annotations

import msgspec

from visibility.contract.operations import Operation


class Withheld(msgspec.Struct, frozen=True, array_like=True):
    """The mark of a withheld message. Stored form: only append.

    `reference` names a ticket or a reason. A message with `deleted_at_ms` is deleted then; one with
    0 waits until it is released or expires.
    """

    sequence: int
    since_ms: int = 0
    owner: str = ""
    reference: str = ""
    deleted_at_ms: int = 0


class WithholdMessages(Operation, frozen=True):
    """Keep the waiting messages with these sequences from everyone, until they are released or
    deleted; answers `outcomes.SelectedChanged`.

    `delete_after_ms` 0: they wait until they are released. `owner` and `reference` are texts of
    the operator.
    """

    sequences: list[int] = msgspec.field(default_factory=list)
    owner: str = ""
    reference: str = ""
    delete_after_ms: int = 0


class ReleaseMessages(Operation, frozen=True):
    """Make withheld messages visible again: quarantined ones, or (`deleting`) those that are to be
    deleted; answers `outcomes.SelectedChanged`."""

    sequences: list[int] = msgspec.field(default_factory=list)
    deleting: bool = False
