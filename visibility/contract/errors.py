"""AWS's refusals: one class per error name, with AWS's wording where it is known.

A QueueError is the client's fault and is raised where the rule is; inside a batch it is the value
of one entry. The table in `sqs_api/protocol/error_codes.py` has its form on the wire (JSON
`__type`, query code, HTTP status).
Source: the error tables recorded from AWS and, where AWS's wording is not known, the common wording
of emulators.
"""

from __future__ import annotations

from typing import TypeVar

_Error = TypeVar("_Error", bound=Exception)


def without_frames(error: _Error) -> _Error:
    """The error without the frames that raised it and those of the errors behind it.

    Frames hold the request's body and, through their own variables, each other: what is in such a
    circle stays in memory until the collector looks, which counts objects and not bytes. Call it
    for each error that is kept.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


class QueueError(Exception):
    """A refusal in AWS's wording.

    `message` goes to the client unchanged, `code` is the query protocol's code.
    """

    code = ""
    default_message = ""

    def __init__(self, message: str | None = None) -> None:
        self.message = self.default_message if message is None else message
        super().__init__(self.message)


class QueueDoesNotExist(QueueError):
    """No queue has this name (the query protocol words it differently, see encode_error)."""

    code = "AWS.SimpleQueueService.NonExistentQueue"
    default_message = "The specified queue does not exist."


class QueueNameExists(QueueError):
    """CreateQueue names an existing queue and a different attribute value."""

    code = "QueueAlreadyExists"


class QueueDeletedRecently(QueueError):
    """CreateQueue within 60 s of DeleteQueue."""

    code = "AWS.SimpleQueueService.QueueDeletedRecently"
    default_message = (
        "You must wait 60 seconds after deleting a queue before you can create another with the "
        "same name."
    )


class PurgeQueueInProgress(QueueError):
    """A second PurgeQueue within 60 s."""

    code = "AWS.SimpleQueueService.PurgeQueueInProgress"


class InvalidParameterValue(QueueError):
    """A parameter is out of range or malformed."""

    code = "InvalidParameterValue"


class MissingParameter(QueueError):
    """A required parameter is absent."""

    code = "MissingParameter"


class InvalidAttributeName(QueueError):
    """A queue attribute does not exist, or not for this type of queue."""

    code = "InvalidAttributeName"


class InvalidAttributeValue(QueueError):
    """A queue attribute's value is not allowed."""

    code = "InvalidAttributeValue"


class InvalidMessageContents(QueueError):
    """The body holds characters outside XML 1.0's set."""

    code = "InvalidMessageContents"


class ReceiptHandleIsInvalid(QueueError):
    """The receipt handle was not issued for this queue."""

    code = "ReceiptHandleIsInvalid"


class MessageNotInflight(QueueError):
    """The message is not in flight."""

    code = "AWS.SimpleQueueService.MessageNotInflight"


class OverLimit(QueueError):
    """Too many messages in flight, or too many actions in a permission."""

    code = "OverLimit"


class BatchEntryIdsNotDistinct(QueueError):
    """Two entries share an id."""

    code = "AWS.SimpleQueueService.BatchEntryIdsNotDistinct"


class BatchRequestTooLong(QueueError):
    """The entries' bodies and attributes exceed the limit together."""

    code = "AWS.SimpleQueueService.BatchRequestTooLong"


class EmptyBatchRequest(QueueError):
    """The batch has no entries."""

    code = "AWS.SimpleQueueService.EmptyBatchRequest"


class InvalidBatchEntryId(QueueError):
    """An entry's id is malformed."""

    code = "AWS.SimpleQueueService.InvalidBatchEntryId"
    default_message = (
        "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
        "It can be at most 80 letters long."
    )


class TooManyEntriesInBatchRequest(QueueError):
    """More than ten entries."""

    code = "AWS.SimpleQueueService.TooManyEntriesInBatchRequest"


class UnsupportedOperation(QueueError):
    """The service does not do this."""

    code = "AWS.SimpleQueueService.UnsupportedOperation"


class TransactionConflict(QueueError):
    """A handle of a transaction is not that of its message's latest receive, the message is gone,
    or another transaction may delete it. Named after DynamoDB's reason of a cancelled
    transaction."""

    code = "TransactionConflict"
    default_message = (
        "The receipt handle is not that of the latest receive, or its message is gone or part of "
        "another transaction."
    )


class TransactionCanceled(QueueError):
    """A transaction had no effect; DynamoDB's name."""

    code = "TransactionCanceledException"


class IdempotentParameterMismatch(QueueError):
    """A ClientRequestToken was used with other content; DynamoDB's name."""

    code = "IdempotentParameterMismatchException"
    default_message = (
        "The ClientRequestToken was used before, for a transaction with other entries."
    )


class ResourceNotFound(QueueError):
    """A move task, or a queue named by ARN, does not exist."""

    code = "ResourceNotFoundException"


class InvalidAction(QueueError):
    """The endpoint has no such action (query protocol)."""

    code = "InvalidAction"


class UnknownOperation(QueueError):
    """The request names no action at all."""

    code = "UnknownOperationException"


class InvalidSecurity(QueueError):
    """The request was not made over a permitted channel."""

    code = "InvalidSecurity"


class InvalidAddress(QueueError):
    """The queue's address is malformed."""

    code = "InvalidAddress"


class KmsAccessDenied(QueueError):
    """The caller may not use the key that the queue or a message names."""

    code = "KMS.AccessDeniedException"


class KmsDisabled(QueueError):
    """The key that the queue or a message names is disabled."""

    code = "KMS.DisabledException"


class KmsNotFound(QueueError):
    """No key has the name that the queue gives."""

    code = "KMS.NotFoundException"


class RequestThrottled(QueueError):
    """The caller exceeds a rate."""

    code = "RequestThrottled"


class InvalidRequest(QueueError):
    """The request's bytes are not a valid request (SerializationException, malformed query
    string)."""

    code = "MalformedInput"


class RequestTooLarge(QueueError):
    """The request's body is larger than any valid request."""

    code = "RequestEntityTooLarge"


class ServiceUnavailable(QueueError):
    """A temporary fault of the service: the client may retry. Not a refusal, but encoded like
    one."""

    code = "ServiceUnavailable"
    default_message = "The service is unavailable. Please try again."


class Moved(ServiceUnavailable):
    """A part of a queue takes no messages any more: another one does. Gateways go on there, so
    that clients do not see it. So it answers for a message that it does not have, too."""


class Departing(ServiceUnavailable):
    """A message is on its way to another part of its queue. Gateways ask again when it is there."""


class InternalError(QueueError):
    """A bug of the service: the request failed, the client may retry."""

    code = "InternalFailure"
    default_message = "We encountered an internal error. Please try again."


FAULTS_OF_THE_SERVICE = frozenset((ServiceUnavailable.code, InternalError.code))
"""Codes of the errors that are not the client's fault."""
