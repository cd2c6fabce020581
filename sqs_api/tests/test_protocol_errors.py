"""The error table is complete, and errors look on the wire as they were recorded from AWS."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from auth import auth_errors
from auth.auth_errors import AuthError
from sqs_api.admin.remembered import IdempotencyKeyReused
from sqs_api.protocol import error_codes
from sqs_api.protocol.codec import Wire, encode_error
from sqs_api.protocol.error_codes import Fault
from visibility.contract import errors as queue_errors
from visibility.contract.errors import QueueError
from visibility.contract.outcomes import batch_failure

XMLNS = 'xmlns="http://queue.amazonaws.com/doc/2012-11-05/"'
ERRORS: list[type[QueueError | AuthError]] = [
    value
    for module, base in ((queue_errors, QueueError), (auth_errors, AuthError))
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, base) and value is not base
]


@pytest.mark.parametrize("error_class", ERRORS)
def test_every_error_class_has_a_row_and_a_code(error_class: type[QueueError | AuthError]) -> None:
    assert error_class in error_codes.TABLE
    assert error_class.code


@pytest.mark.parametrize("error_class", [each for each in ERRORS if issubclass(each, QueueError)])
def test_a_batch_blames_the_side_that_a_single_answer_blames(error_class: type[QueueError]) -> None:
    failure = batch_failure("a", error_class())

    assert failure.sender_fault is (error_codes.TABLE[error_class].fault is Fault.SENDER)


def test_every_row_belongs_to_an_error_class() -> None:
    assert set(error_codes.TABLE) == set(ERRORS)


def subclasses(kind: type) -> list[type]:
    found: list[type] = type.__subclasses__(kind)
    return [*found, *(each for one in found for each in subclasses(one))]


def test_no_two_errors_share_a_name() -> None:
    """Hosts tell each other an error by its name."""
    names = [
        each.__name__
        for each in subclasses(QueueError) + subclasses(AuthError)
        if each.__module__.startswith(("sqs_api", "visibility", "cluster", "auth", "storage"))
        and ".tests." not in each.__module__
    ]

    assert IdempotencyKeyReused.__name__ in names
    assert sorted(names) == sorted(set(names))


# error, __type, x-amzn-query-error, status
RECORDED = [
    (
        queue_errors.QueueDoesNotExist(),
        "com.amazonaws.sqs#QueueDoesNotExist",
        "AWS.SimpleQueueService.NonExistentQueue;Sender",
        400,
    ),
    (
        queue_errors.QueueNameExists("x"),
        "com.amazonaws.sqs#QueueNameExists",
        "QueueAlreadyExists;Sender",
        400,
    ),
    (
        queue_errors.InvalidParameterValue("x"),
        "com.amazon.coral.service#InvalidParameterValueException",
        "InvalidParameterValue;Sender",
        400,
    ),
    (
        queue_errors.MissingParameter("x"),
        "com.amazon.coral.service#MissingRequiredParameterException",
        "MissingParameter;Sender",
        400,
    ),
    (
        queue_errors.PurgeQueueInProgress("x"),
        "com.amazonaws.sqs#PurgeQueueInProgress",
        "AWS.SimpleQueueService.PurgeQueueInProgress;Sender",
        403,
    ),
    (
        queue_errors.ResourceNotFound("x"),
        "com.amazonaws.sqs#ResourceNotFoundException",
        "ResourceNotFoundException;Sender",
        404,
    ),
    (queue_errors.OverLimit("x"), "com.amazonaws.sqs#OverLimit", "OverLimit;Sender", 403),
    (
        queue_errors.ReceiptHandleIsInvalid("x"),
        "com.amazonaws.sqs#ReceiptHandleIsInvalid",
        "ReceiptHandleIsInvalid;Sender",
        404,
    ),
    (
        queue_errors.TooManyEntriesInBatchRequest("x"),
        "com.amazonaws.sqs#TooManyEntriesInBatchRequest",
        "AWS.SimpleQueueService.TooManyEntriesInBatchRequest;Sender",
        400,
    ),
    (
        queue_errors.InvalidAction("x"),
        "com.amazon.coral.service#UnknownOperationException",
        "InvalidAction;Sender",
        400,
    ),
    (
        queue_errors.InvalidRequest("x"),
        "com.amazon.coral.service#SerializationException",
        "MalformedInput;Sender",
        400,
    ),
]


@pytest.mark.parametrize(("error", "json_type", "header", "status"), RECORDED)
def test_json_error_has_type_message_header_and_status(
    error: QueueError, json_type: str, header: str, status: int
) -> None:
    encoded = encode_error(error, Wire.JSON, "r")

    assert encoded.status == status
    assert encoded.headers == ((b"x-amzn-query-error", header.encode()),)
    assert encoded.content_type == b"application/x-amz-json-1.0"
    assert json.loads(encoded.body) == {"__type": json_type, "message": error.message}


def test_missing_queue_is_worded_by_protocol() -> None:
    error = queue_errors.QueueDoesNotExist()

    assert encode_error(error, Wire.JSON, "r").body == (
        b'{"__type":"com.amazonaws.sqs#QueueDoesNotExist",'
        b'"message":"The specified queue does not exist."}'
    )
    assert encode_error(error, Wire.QUERY_XML, "req").body.decode() == (
        f'<?xml version="1.0"?><ErrorResponse {XMLNS}><Error><Type>Sender</Type>'
        "<Code>AWS.SimpleQueueService.NonExistentQueue</Code>"
        "<Message>The specified queue does not exist for this wsdl "
        "version.</Message><Detail/></Error>"
        "<RequestId>req</RequestId></ErrorResponse>"
    )


def test_query_error_has_no_json_shape_name_and_no_header() -> None:
    encoded = encode_error(queue_errors.InvalidParameterValue("<no> & \x01\r"), Wire.QUERY_XML, "r")

    assert encoded.headers == ()
    assert encoded.content_type == b"text/xml"
    assert encoded.body.decode() == (
        f'<?xml version="1.0"?><ErrorResponse {XMLNS}><Error><Type>Sender</Type>'
        "<Code>InvalidParameterValue</Code>"
        "<Message>&lt;no&gt; &amp; \ufffd&#xD;</Message><Detail/></Error>"
        "<RequestId>r</RequestId></ErrorResponse>"
    )


def test_query_error_in_json_form() -> None:
    encoded = encode_error(queue_errors.InvalidAction("no"), Wire.QUERY_JSON, "r")

    assert encoded.content_type == b"application/json"
    assert json.loads(encoded.body) == {
        "Error": {"Code": "InvalidAction", "Message": "no", "Type": "Sender"},
        "RequestId": "r",
    }


@pytest.mark.parametrize("chosen", [Wire.QUERY_XML, Wire.QUERY_JSON])
def test_no_action_by_query_is_the_bare_404(chosen: Wire) -> None:
    encoded = encode_error(queue_errors.UnknownOperation(), chosen, "r")

    assert encoded.status == 404
    assert encoded.content_type == b"text/xml"
    assert encoded.body.strip() == b"<UnknownOperationException/>"


def test_access_denied_has_a_capital_message() -> None:
    encoded = encode_error(auth_errors.AccessDenied("no"), Wire.JSON, "r")

    assert encoded.status == 403
    assert encoded.headers == ((b"x-amzn-query-error", b"AccessDenied;Sender"),)
    assert json.loads(encoded.body) == {
        "__type": "com.amazon.coral.service#AccessDeniedException",
        "Message": "no",
    }


@pytest.mark.parametrize(
    ("error", "status"),
    [(queue_errors.ServiceUnavailable(), 503), (queue_errors.InternalError(), 500)],
)
def test_faults_of_ours_blame_the_receiver(error: QueueError, status: int) -> None:
    assert encode_error(error, Wire.JSON, "r").status == status
    assert encode_error(error, Wire.JSON, "r").headers[0][1].endswith(b";Receiver")
    assert b"<Type>Receiver</Type>" in encode_error(error, Wire.QUERY_XML, "r").body


@pytest.mark.parametrize("chosen", list(Wire))
@pytest.mark.parametrize("error_class", ERRORS)
def test_every_error_encodes_whatever_its_text_echoes(
    error_class: type[QueueError | AuthError], chosen: Wire
) -> None:
    encoded = encode_error(error_class("\ud800 \x00 ]]> \r\n <a b='c'> \ufffe"), chosen, "r&")

    assert 400 <= encoded.status <= 599
    if encoded.content_type == b"text/xml":
        ElementTree.fromstring(encoded.body)
    else:
        json.loads(encoded.body)


def test_unlisted_error_takes_the_row_of_its_base() -> None:
    class Narrower(queue_errors.OverLimit):
        """A refusal the table does not know."""

    assert error_codes.error_row(Narrower()) is error_codes.TABLE[queue_errors.OverLimit]
    assert error_codes.error_row(QueueError()) is error_codes.TABLE[queue_errors.InternalError]


def test_faults_are_aws_words() -> None:
    assert {fault.value for fault in Fault} == {"Sender", "Receiver"}
