"""LateNews: a request is refused for a key, a policy or a queue only once what other processes
changed is known here.

A new access key is good for the very next request, and a host of a cluster whose watch of etcd lags
does not refuse what its neighbours would answer.
"""

from __future__ import annotations

from auth.auth_errors import AccessDenied, AuthError, InvalidClientTokenId
from sqs_api.gateway.changes_elsewhere import Changes
from sqs_api.gateway.queue_actions import QueueActions
from visibility.contract.errors import (
    KmsAccessDenied,
    KmsDisabled,
    KmsNotFound,
    QueueDoesNotExist,
    QueueError,
)

_REFUSALS = {
    InvalidClientTokenId,
    AccessDenied,
    QueueDoesNotExist,
    KmsAccessDenied,
    KmsDisabled,
    KmsNotFound,
}


class LateNews:
    """Belongs to the event loop's thread."""

    def __init__(self, changes: Changes, queues: QueueActions) -> None:
        self._changes = changes
        self._queues = queues

    def may_lift(self, refusal: QueueError | AuthError) -> bool:
        """True if the request should be decided again after `hear`."""
        if type(refusal) not in _REFUSALS:
            return False
        if self._queues.may_lack_queues:
            return True
        known = self._changes.reloads
        self._changes.look()
        return self._changes.reloads > known

    async def hear(self, refusal: QueueError | AuthError) -> None:
        """Wait until all is known here that was changed before and could lift the refusal.

        Raises ServiceUnavailable if that is not so soon.
        """
        if self._queues.may_lack_queues:  # else `may_lift` picked up all
            if type(refusal) is not QueueDoesNotExist:
                await self._changes.hear()
            if type(refusal) is not InvalidClientTokenId:
                await self._queues.learn_all()
