"""TABLE: refusals on the wire: JSON `__type`, HTTP status, fault. The query code is on the class.

AWS sends its service's own errors as `com.amazonaws.sqs#...` and those of its framework as
`com.amazon.coral.service#...`; clients cut at `#`. InvalidParameterValue and MissingParameter are
framework errors.
Source: answers recorded from AWS (marked "recorded"), else the service model.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from auth import auth_errors
from auth.auth_errors import AuthError
from visibility.contract import errors as queue_errors
from visibility.contract.errors import QueueError

_SERVICE = "com.amazonaws.sqs#"
_FRAMEWORK = "com.amazon.coral.service#"


class Fault(Enum):
    """The side at fault: `<Type>` in XML, the part behind `;` in x-amzn-query-error."""

    SENDER = "Sender"
    RECEIVER = "Receiver"


class ErrorRow(NamedTuple):
    """One error on the wire."""

    json_type: str
    status: int = 400
    fault: Fault = Fault.SENDER
    query_message: str | None = None
    """The query protocol's text, where the class's default message is that of the JSON protocol."""
    message_member: str = "message"
    """The JSON member that holds the text."""


def _service(shape: str, status: int = 400, *, query_message: str | None = None) -> ErrorRow:
    return ErrorRow(_SERVICE + shape, status, query_message=query_message)


def _framework(shape: str, status: int = 400) -> ErrorRow:
    return ErrorRow(_FRAMEWORK + shape, status)


TABLE: dict[type[Exception], ErrorRow] = {
    # Recorded. The query text differs from the JSON one.
    queue_errors.QueueDoesNotExist: _service(
        "QueueDoesNotExist",
        query_message="The specified queue does not exist for this wsdl version.",
    ),
    queue_errors.QueueNameExists: _service("QueueNameExists"),
    queue_errors.QueueDeletedRecently: _service("QueueDeletedRecently"),
    queue_errors.PurgeQueueInProgress: _service("PurgeQueueInProgress", 403),
    # Recorded: neither of these two shapes is in the service model.
    queue_errors.InvalidParameterValue: _framework("InvalidParameterValueException"),
    queue_errors.MissingParameter: _framework("MissingRequiredParameterException"),
    queue_errors.InvalidAttributeName: _service("InvalidAttributeName"),
    queue_errors.InvalidAttributeValue: _service("InvalidAttributeValue"),
    queue_errors.InvalidMessageContents: _service("InvalidMessageContents"),
    # Recorded with 404, unlike the other refusals of a parameter.
    queue_errors.ReceiptHandleIsInvalid: _service("ReceiptHandleIsInvalid", 404),
    queue_errors.MessageNotInflight: _service("MessageNotInflight"),
    queue_errors.OverLimit: _service("OverLimit", 403),
    queue_errors.BatchEntryIdsNotDistinct: _service("BatchEntryIdsNotDistinct"),
    queue_errors.BatchRequestTooLong: _service("BatchRequestTooLong"),
    queue_errors.EmptyBatchRequest: _service("EmptyBatchRequest"),
    queue_errors.InvalidBatchEntryId: _service("InvalidBatchEntryId"),
    queue_errors.TooManyEntriesInBatchRequest: _service("TooManyEntriesInBatchRequest"),
    queue_errors.UnsupportedOperation: _service("UnsupportedOperation"),
    queue_errors.TransactionConflict: _service("TransactionConflictException"),
    queue_errors.TransactionCanceled: _service("TransactionCanceledException"),
    queue_errors.IdempotentParameterMismatch: _service("IdempotentParameterMismatchException"),
    queue_errors.ResourceNotFound: _service("ResourceNotFoundException", 404),
    # Recorded: JSON names an unknown action UnknownOperationException, with InvalidAction in the
    # header.
    queue_errors.InvalidAction: _framework("UnknownOperationException"),
    # The query protocol answers this one with a bare element and no error form (`encode_error`).
    queue_errors.UnknownOperation: _framework("UnknownOperationException", 404),
    queue_errors.InvalidSecurity: _service("InvalidSecurity", 403),
    queue_errors.InvalidAddress: _service("InvalidAddress", 404),
    queue_errors.KmsAccessDenied: _service("KmsAccessDenied"),
    queue_errors.KmsDisabled: _service("KmsDisabled"),
    queue_errors.KmsNotFound: _service("KmsNotFound"),
    # botocore retries this one on exactly 403 (its data/_retry.json).
    queue_errors.RequestThrottled: _service("RequestThrottled", 403),
    # Recorded, with MalformedInput in the header.
    queue_errors.InvalidRequest: _framework("SerializationException"),
    queue_errors.RequestTooLarge: _framework("RequestEntityTooLargeException", 413),
    queue_errors.ServiceUnavailable: ErrorRow(
        _FRAMEWORK + "ServiceUnavailableException", 503, Fault.RECEIVER
    ),
    queue_errors.Moved: ErrorRow(_FRAMEWORK + "ServiceUnavailableException", 503, Fault.RECEIVER),
    queue_errors.Departing: ErrorRow(
        _FRAMEWORK + "ServiceUnavailableException", 503, Fault.RECEIVER
    ),
    queue_errors.InternalError: ErrorRow(_FRAMEWORK + "InternalFailure", 500, Fault.RECEIVER),
    auth_errors.MissingAuthenticationToken: _framework("MissingAuthenticationTokenException", 403),
    auth_errors.IncompleteSignature: _framework("IncompleteSignatureException"),
    auth_errors.InvalidClientTokenId: _framework("UnrecognizedClientException", 403),
    auth_errors.ExpiredToken: _framework("ExpiredTokenException", 403),
    auth_errors.SessionEnded: _framework("ExpiredTokenException", 403),  # never on the wire
    auth_errors.SignatureDoesNotMatch: _framework("InvalidSignatureException", 403),
    # Recorded: the text is in `Message`, with a capital.
    auth_errors.AccessDenied: ErrorRow(
        _FRAMEWORK + "AccessDeniedException", 403, message_member="Message"
    ),
}
"""Every error class, checked for completeness by test_protocol_errors.py."""


def error_row(error: QueueError | AuthError) -> ErrorRow:
    """The row of an error's class or of its nearest base; InternalError's when there is none."""
    for error_class in type(error).__mro__:
        row = TABLE.get(error_class)
        if row is not None:
            return row
    return TABLE[queue_errors.InternalError]
