"""Messages that an operator holds: until their release, or until a delete that can be undone.
Values only."""

from __future__ import annotations

import msgspec

from visibility.contract.operations import Operation


class Hold(msgspec.Struct, frozen=True, array_like=True):
    """A hold on a message. Stored form: only append.

    `reference` names a ticket or a reason. A message with `deleted_at_ms` is deleted then; one with
    0 waits until it is released or expires.
    """

    sequence: int
    since_ms: int = 0
    owner: str = ""
    reference: str = ""
    deleted_at_ms: int = 0


class HoldMessages(Operation, frozen=True):
    """Hold the waiting messages with these sequences: nobody gets them until they are released or
    deleted; answers `outcomes.SelectedChanged`.

    `delete_after_ms` 0: they wait until they are released. `owner` and `reference` are texts of
    the operator.
    """

    sequences: list[int] = msgspec.field(default_factory=list)
    owner: str = ""
    reference: str = ""
    delete_after_ms: int = 0


class ReleaseMessages(Operation, frozen=True):
    """Make held messages visible again: those that wait for it, or (`deleting`) those that are to
    be deleted; answers `outcomes.SelectedChanged`."""

    sequences: list[int] = msgspec.field(default_factory=list)
    deleting: bool = False
