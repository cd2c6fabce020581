"""TABLE: the 23 actions of SQS, one row each: shapes, owner, payload, permissions and refusals.

Two more tables have the same request types: the coroutines of what shards do not answer alone
(`sqs_api/gateway/queue_actions.py`) and the operations of shards (`visibility/rules/features.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import Any

import msgspec

from auth.caller import Caller
from visibility.contract import errors, limits, operations, results, validate
from visibility.contract.move_task import decode_handle
from visibility.contract.naming import check_label, is_account

MOVE_SOURCE = ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes")
"""Further permissions that StartMessageMoveTask needs on the source."""
MOVE_DESTINATION = "sqs:SendMessage"
"""Permission on its destination; without one, on each queue that the source is a dead-letter queue
of."""
KEY_TO_RECEIVE = ("kms:Decrypt",)
KEY_TO_SEND = ("kms:GenerateDataKey", "kms:Decrypt")


class AnsweredBy(Enum):
    """The component that answers an action."""

    SHARD = "shard"
    """The shard that holds the queue named by `queue_url`."""
    CATALOG = "catalog"
    """The owner of queue definitions, without any shard."""
    BOTH = "both"
    """The catalog, with the help of shards."""


class Payload(Enum):
    """The input of a shard besides the operation, which the gateway makes."""

    CONTENTS = "contents"
    """Packed and sealed contents of the messages to send."""
    NONE = "none"
    """Nothing; the queue's key must be usable."""
    RECEIPT = "receipt"
    """The receipt of one handle."""
    RECEIPTS = "receipts"
    """The receipts of a batch's handles."""


_Needed = Iterator[tuple[str, str]]
Needs = Callable[[Any, Caller], _Needed]
"""The permissions of an operation, each with the ARN on which it is needed."""


class Action:
    """A row of the table."""

    __slots__ = (
        "answered_by",
        "audited",
        "check",
        "grantable",
        "key_permissions",
        "name",
        "needs",
        "payload",
        "permission",
        "request",
        "required",
        "result",
        "takes_space",
    )

    def __init__(
        self,
        request: type[operations.Operation],
        result: type[msgspec.Struct] | None,
        answered_by: AnsweredBy,
        required: tuple[str, ...] = ("queue_url",),
        *,
        check: Callable[[Any], None] | None = None,
        takes_space: bool = False,
        audited: bool = False,
        grantable: bool = False,
        payload: Payload | None = None,
        needs: Needs | None = None,
        key_permissions: tuple[str, ...] = (),
    ) -> None:
        if (payload is not None) is not (answered_by is AnsweredBy.SHARD):
            raise TypeError(f"{request.__name__}: a payload belongs to the actions of a shard")
        self.request = request
        self.result = result
        self.answered_by = answered_by
        self.required = required
        """Members that must be present, in the order AWS reports them."""
        self.check = check or partial(validate.check_required, required)
        """Refuses an operation that no queue could accept; by default, one that lacks a member."""
        self.takes_space = takes_space
        """True if the action is refused below the disk reserve."""
        self.audited = audited
        """True if the audit log has a line for each call: it changes more than single messages."""
        self.grantable = grantable
        """True if AddPermission can grant the action."""
        self.payload = payload
        self.needs = needs
        """Permissions of an action that names no queue by its URL; None for the others, which need
        `permission` on their queue."""
        self.key_permissions = key_permissions
        """The permissions needed on the key of its queue."""
        self.name = request.__name__
        """AWS's name of the action, e.g. `SendMessage`."""
        self.permission = f"sqs:{self.name.removesuffix('Batch')}"
        """The permission that a caller needs; a batch needs that of its single action."""


POLICY_TOO_LARGE = "Submitted policy is over max allowed size."
UNKNOWN_ACTION = "Please refer to the appropriate WSDL for a list of valid actions."
"""The reason that AWS gives for refusing an action, also that of a batch."""
_ACCOUNTS_MAX = limits.POLICY_BYTES_MAX // limits.ACCOUNT_ID_DIGITS
"""The ids of more accounts make any policy too large."""


def check(operation: operations.Operation) -> None:
    """Refuse an operation that no queue could accept.

    Raises MissingParameter, InvalidParameterValue, InvalidAttributeName, OverLimit and the errors
    of batches.
    """
    ACTIONS[type(operation).__name__].check(operation)


def _check_add_permission(operation: operations.AddPermission) -> None:
    """The one check that reads the table: some actions can be granted, others are the owner's
    only."""
    validate.check_required(("queue_url", "label", "actions"), operation)
    check_label(operation.label)
    accounts, actions = operation.aws_account_ids or [], operation.actions or []
    if len(accounts) > _ACCOUNTS_MAX:
        raise errors.OverLimit(POLICY_TOO_LARGE)
    if len(actions) > limits.PERMISSION_ACTIONS_MAX:
        raise errors.OverLimit(
            f"{len(actions)} Actions were found, "
            f"maximum allowed is {limits.PERMISSION_ACTIONS_MAX}."
        )
    if not accounts or not all(map(is_account, accounts)):
        raise errors.InvalidParameterValue(
            f"Value [{', '.join(accounts)}] for parameter PrincipalId is invalid. "
            "Reason: Unable to verify."
        )
    for name in actions:
        action = ACTIONS.get(name)
        if name == "*" or (action is not None and action.grantable):
            continue
        owner_only = action is not None and not name.endswith("Batch")
        reason = (
            "Only the queue owner is allowed to invoke this action."
            if owner_only
            else UNKNOWN_ACTION
        )
        raise errors.InvalidParameterValue(
            f"Value SQS:{name} for parameter ActionName is invalid. Reason: {reason}"
        )


def _arn(caller: Caller, account: str | None, name: str | None) -> str:
    return f"arn:aws:sqs:{caller.region}:{account or caller.account}:{name or ''}"


def _needs_to_create(operation: operations.CreateQueue, caller: Caller) -> _Needed:
    arn = _arn(caller, None, operation.queue_name)
    yield "sqs:CreateQueue", arn
    if operation.tags_on_create:
        yield "sqs:TagQueue", arn


def _needs_for_url(operation: operations.GetQueueUrl, caller: Caller) -> _Needed:
    owner = operation.queue_owner_aws_account_id
    yield "sqs:GetQueueUrl", _arn(caller, owner, operation.queue_name)


def _needs_to_list(operation: operations.ListQueues, caller: Caller) -> _Needed:
    yield "sqs:ListQueues", _arn(caller, None, "*")


def _needs_to_start_move(operation: operations.StartMessageMoveTask, caller: Caller) -> _Needed:
    source = operation.source_arn or ""
    for permission in ("sqs:StartMessageMoveTask", *MOVE_SOURCE):
        yield permission, source
    if operation.destination_arn is not None:
        yield MOVE_DESTINATION, operation.destination_arn


def _needs_to_cancel_move(operation: operations.CancelMessageMoveTask, caller: Caller) -> _Needed:
    yield "sqs:CancelMessageMoveTask", decode_handle(operation.task_handle or "").source_arn


def _needs_to_list_moves(operation: operations.ListMessageMoveTasks, caller: Caller) -> _Needed:
    yield "sqs:ListMessageMoveTasks", operation.source_arn or ""


ACTIONS: dict[str, Action] = {
    row.name: row
    for row in (
        Action(
            operations.SendMessage,
            results.SendMessageResult,
            AnsweredBy.SHARD,
            ("queue_url", "message_body"),
            check=validate.check_send_message,
            takes_space=True,
            grantable=True,
            payload=Payload.CONTENTS,
            key_permissions=KEY_TO_SEND,
        ),
        Action(
            operations.SendMessageBatch,
            results.SendMessageBatchResult,
            AnsweredBy.SHARD,
            check=validate.check_send_message_batch,
            takes_space=True,
            payload=Payload.CONTENTS,
            key_permissions=KEY_TO_SEND,
        ),
        Action(
            operations.ReceiveMessage,
            results.ReceiveMessageResult,
            AnsweredBy.SHARD,
            check=validate.check_receive_message,
            grantable=True,
            payload=Payload.NONE,
            key_permissions=KEY_TO_RECEIVE,
        ),
        Action(
            operations.DeleteMessage,
            None,
            AnsweredBy.SHARD,
            ("queue_url", "receipt_handle"),
            check=validate.check_delete_message,
            grantable=True,
            payload=Payload.RECEIPT,
        ),
        Action(
            operations.DeleteMessageBatch,
            results.DeleteMessageBatchResult,
            AnsweredBy.SHARD,
            check=validate.check_delete_message_batch,
            payload=Payload.RECEIPTS,
        ),
        Action(
            operations.ChangeMessageVisibility,
            None,
            AnsweredBy.SHARD,
            ("queue_url", "receipt_handle", "visibility_timeout"),
            check=validate.check_change_message_visibility,
            grantable=True,
            payload=Payload.RECEIPT,
        ),
        Action(
            operations.ChangeMessageVisibilityBatch,
            results.ChangeMessageVisibilityBatchResult,
            AnsweredBy.SHARD,
            check=validate.check_change_message_visibility_batch,
            payload=Payload.RECEIPTS,
        ),
        Action(operations.PurgeQueue, None, AnsweredBy.BOTH, audited=True, grantable=True),
        Action(
            operations.CreateQueue,
            results.CreateQueueResult,
            AnsweredBy.CATALOG,
            ("queue_name",),
            check=validate.check_create_queue,
            takes_space=True,
            audited=True,
            needs=_needs_to_create,
        ),
        Action(operations.DeleteQueue, None, AnsweredBy.BOTH, audited=True),
        Action(
            operations.GetQueueUrl,
            results.GetQueueUrlResult,
            AnsweredBy.CATALOG,
            ("queue_name",),
            check=validate.check_get_queue_url,
            grantable=True,
            needs=_needs_for_url,
        ),
        Action(
            operations.ListQueues,
            results.ListQueuesResult,
            AnsweredBy.CATALOG,
            (),
            check=validate.check_list_queues,
            needs=_needs_to_list,
        ),
        Action(
            operations.GetQueueAttributes,
            results.GetQueueAttributesResult,
            AnsweredBy.BOTH,
            check=validate.check_get_queue_attributes,
            grantable=True,
        ),
        Action(
            operations.SetQueueAttributes,
            None,
            AnsweredBy.BOTH,
            ("queue_url", "attributes"),
            audited=True,
        ),
        Action(operations.ListQueueTags, results.ListQueueTagsResult, AnsweredBy.CATALOG),
        Action(
            operations.TagQueue,
            None,
            AnsweredBy.CATALOG,
            ("queue_url", "tags"),
            check=validate.check_tag_queue,
            takes_space=True,
            audited=True,
        ),
        Action(
            operations.UntagQueue,
            None,
            AnsweredBy.CATALOG,
            ("queue_url", "tag_keys"),
            check=validate.check_untag_queue,
            audited=True,
        ),
        Action(
            operations.ListDeadLetterSourceQueues,
            results.ListDeadLetterSourceQueuesResult,
            AnsweredBy.CATALOG,
            check=validate.check_list_dead_letter_source_queues,
            grantable=True,
        ),
        Action(
            operations.AddPermission,
            None,
            AnsweredBy.CATALOG,
            ("queue_url", "label", "aws_account_ids", "actions"),
            check=_check_add_permission,
            audited=True,
        ),
        Action(
            operations.RemovePermission,
            None,
            AnsweredBy.CATALOG,
            ("queue_url", "label"),
            check=validate.check_remove_permission,
            audited=True,
        ),
        Action(
            operations.StartMessageMoveTask,
            results.StartMessageMoveTaskResult,
            AnsweredBy.BOTH,
            ("source_arn",),
            check=validate.check_start_message_move_task,
            takes_space=True,
            audited=True,
            needs=_needs_to_start_move,
        ),
        Action(
            operations.CancelMessageMoveTask,
            results.CancelMessageMoveTaskResult,
            AnsweredBy.BOTH,
            ("task_handle",),
            audited=True,
            needs=_needs_to_cancel_move,
        ),
        Action(
            operations.ListMessageMoveTasks,
            results.ListMessageMoveTasksResult,
            AnsweredBy.BOTH,
            ("source_arn",),
            check=validate.check_list_message_move_tasks,
            needs=_needs_to_list_moves,
        ),
    )
}
