"""Answers about messages that operators put aside: quarantine, and deletes that can be undone.

Both are withheld messages (`visibility/rules/withhold.py`). Each is ended with the permission that
began it: who may delete only cannot release a quarantined message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from sqs_api.operators.asked import Asked
from sqs_api.operators.desk import Desk
from sqs_api.operators.routes import BROWSE_MESSAGES
from visibility.contract.limits import WITHHELD_DELETE_SECONDS_MAX
from visibility.contract.operations import DeleteSelected, Operation
from visibility.contract.outcomes import SelectedChanged, SelectedDeleted
from visibility.contract.withheld import ReleaseMessages, WithholdMessages


class _Selected(msgspec.Struct, forbid_unknown_fields=True):
    sequences: list[int]


class _Deleted(_Selected, forbid_unknown_fields=True):
    undo_s: Annotated[int, msgspec.Meta(ge=0, le=WITHHELD_DELETE_SECONDS_MAX)] = 0
    """Time in which the delete can be undone; 0 deletes at once."""


class _Quarantined(_Selected, forbid_unknown_fields=True):
    owner: str | None = None
    """Their owner, by default the caller."""
    reference: str = ""


async def delete_messages(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """Delete the selected messages that wait; those in flight and quarantined ones stay."""
    given = asked.content(_Deleted)
    asked.noted |= {"sequences": given.sequences, "undo_s": given.undo_s or None}
    if not given.undo_s:
        asked.check(BROWSE_MESSAGES, asked.parts[0])
        answer = await desk.ask(asked, DeleteSelected(given.sequences), asked.queue(asked.parts[0]))
        assert isinstance(answer, SelectedDeleted)
        return {"deleted": answer.deleted, "kept": answer.kept}
    operation = WithholdMessages(
        given.sequences, owner=_name(asked), delete_after_ms=given.undo_s * 1000
    )
    changed = await _change(desk, asked, operation)
    return {"deleted": changed.changed, "kept": changed.kept}


async def undelete_messages(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """Bring back deleted messages while their delete can be undone."""
    given = asked.content(_Selected)
    asked.noted["sequences"] = given.sequences
    changed = await _change(desk, asked, ReleaseMessages(given.sequences, deleting=True))
    return {"undeleted": changed.changed, "gone": changed.kept}


async def quarantine_messages(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """Keep the selected messages that wait from everyone, until they are released or expire."""
    given = asked.content(_Quarantined)
    owner = _name(asked) if given.owner is None else given.owner
    asked.noted |= {"sequences": given.sequences, "owner": owner, "reference": given.reference}
    operation = WithholdMessages(given.sequences, owner, given.reference)
    changed = await _change(desk, asked, operation)
    return {"quarantined": changed.changed, "kept": changed.kept}


async def release_messages(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """Make quarantined messages visible again."""
    given = asked.content(_Selected)
    asked.noted["sequences"] = given.sequences
    changed = await _change(desk, asked, ReleaseMessages(given.sequences))
    return {"released": changed.changed, "kept": changed.kept}


def _name(asked: Asked) -> str:
    return asked.caller.user or "root"


async def _change(desk: Desk, asked: Asked, operation: Operation) -> SelectedChanged:
    queue = asked.queue(asked.parts[0])
    asked.check(BROWSE_MESSAGES, queue.name)
    answer = await desk.ask(asked, operation, queue)
    assert isinstance(answer, SelectedChanged)
    return answer
