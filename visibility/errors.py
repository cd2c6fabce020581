"""AWS's refusals: one class per error name, with AWS's wording where it is known.

A QueueError is the client's fault and is raised where the rule is; inside a batch it is the value of one entry. How it
looks on the wire (JSON `__type`, query code, HTTP status) is the table in `sqs_api/protocol/errors.py`.
Source: the error tables recorded from AWS and, where AWS's wording is not known, the common wording of emulators.
"""

from __future__ import annotations


class QueueError(Exception):
    """A refusal in AWS's words. `message` goes to the client as it is."""

    default_message = ""

    def __init__(self, message: str | None = None) -> None:
        self.message = self.default_message if message is None else message
        super().__init__(self.message)


class QueueDoesNotExist(QueueError):
    """No queue has this name (the query protocol words it differently, see encode_error)."""

    default_message = "The specified queue does not exist."


class QueueNameExists(QueueError):
    """CreateQueue names an existing queue and a different attribute value."""


class QueueDeletedRecently(QueueError):
    """CreateQueue within 60 s of DeleteQueue."""

    default_message = (
        "You must wait 60 seconds after deleting a queue before you can create another with the same name."
    )


class PurgeQueueInProgress(QueueError):
    """A second PurgeQueue within 60 s."""


class InvalidParameterValue(QueueError):
    """A parameter is out of range or malformed."""


class MissingParameter(QueueError):
    """A required parameter is absent."""


class InvalidAttributeName(QueueError):
    """A queue attribute does not exist, or not for this type of queue."""


class InvalidAttributeValue(QueueError):
    """A queue attribute's value is not allowed."""


class InvalidMessageContents(QueueError):
    """The body holds characters outside XML 1.0's set."""

    default_message = (
        "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | "
        "#xE000 to #xFFFD | #x10000 to #x10FFFF"
    )


class ReceiptHandleIsInvalid(QueueError):
    """The receipt handle was not issued for this queue."""


class MessageNotInflight(QueueError):
    """The message is not in flight."""


class OverLimit(QueueError):
    """Too many messages in flight, or too many actions in a permission."""


class BatchEntryIdsNotDistinct(QueueError):
    """Two entries share an id."""


class BatchRequestTooLong(QueueError):
    """The entries' bodies and attributes exceed the limit together."""


class EmptyBatchRequest(QueueError):
    """The batch has no entries."""


class InvalidBatchEntryId(QueueError):
    """An entry's id is malformed."""

    default_message = (
        "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
        "It can be at most 80 letters long."
    )


class TooManyEntriesInBatchRequest(QueueError):
    """More than ten entries."""


class UnsupportedOperation(QueueError):
    """The service does not do this."""


class ResourceNotFound(QueueError):
    """A move task, or a queue named by ARN, does not exist."""


class InvalidAction(QueueError):
    """The endpoint has no such action (query protocol)."""


class UnknownOperation(QueueError):
    """The request names no action at all."""


class InvalidSecurity(QueueError):
    """The request was not made over a permitted channel."""


class InvalidAddress(QueueError):
    """The queue's address is malformed."""


class RequestThrottled(QueueError):
    """The caller exceeds a rate."""


class InvalidRequest(QueueError):
    """The request's bytes cannot be read as a request (SerializationException, malformed query string)."""


class RequestTooLarge(QueueError):
    """The request's body is larger than any valid request."""


class ServiceUnavailable(QueueError):
    """A fault of ours that passes: the client may retry. Not a refusal; shares the road to the wire."""

    default_message = "The service is unavailable. Please try again."


class InternalError(QueueError):
    """A bug of ours: the request failed, the client may retry."""

    default_message = "We encountered an internal error. Please try again."
