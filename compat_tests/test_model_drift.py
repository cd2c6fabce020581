"""Our operations, results and errors against the SQS model of the installed botocore.

Fails on the day AWS gains or changes an action, a member, a type, a required member or an error.
Deliberate differences are listed here, and an entry that no longer differs fails too.
"""

from __future__ import annotations

from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
import pytest
from botocore.loaders import Loader
from botocore.model import ServiceModel, Shape

from sqs_api.protocol.error_codes import TABLE
from visibility.contract.actions import ACTIONS
from visibility.contract.operations import member_name

MODEL = ServiceModel(Loader().load_service_model("sqs", "service-2"), "sqs")

NOT_HANDED_OUT = {
    # AWS reserves list values and has never returned any.
    "MessageAttributeValue.StringListValues",
    "MessageAttributeValue.BinaryListValues",
}
REQUIRED_ELSEWHERE = {
    # An absent list is reported as EmptyBatchRequest, not as a missing parameter.
    "SendMessageBatch": ["Entries"],
    "DeleteMessageBatch": ["Entries"],
    "ChangeMessageVisibilityBatch": ["Entries"],
}
OPTIONAL_IN_THE_MODEL = {
    # AWS always sends them, the model does not promise it.
    "SendMessageResult.MD5OfMessageBody",
    "SendMessageResult.MessageId",
    "CreateQueueResult.QueueUrl",
    "GetQueueUrlResult.QueueUrl",
    "StartMessageMoveTaskResult.TaskHandle",
    "CancelMessageMoveTaskResult.ApproximateNumberOfMessagesMoved",
    "Message.MessageId",
    "Message.ReceiptHandle",
    "Message.MD5OfBody",
    "Message.Body",
}
REQUIRED_IN_THE_MODEL_ONLY = {
    # Recorded from AWS: each list is absent when it would be empty.
    "SendMessageBatchResult.Successful",
    "SendMessageBatchResult.Failed",
    "DeleteMessageBatchResult.Successful",
    "DeleteMessageBatchResult.Failed",
    "ChangeMessageVisibilityBatchResult.Successful",
    "ChangeMessageVisibilityBatchResult.Failed",
    # Shared with requests, where an absent one is reported; stored ones are always complete.
    "MessageAttributeValue.DataType",
}
ERRORS_WE_NEVER_SEND = {
    "InvalidIdFormat",  # deprecated by AWS
    "KmsInvalidKeyUsage",
    "KmsInvalidState",
    "KmsOptInRequired",
    "KmsThrottled",
}
ERRORS_OF_OUR_OWN_ACTIONS = {
    "IdempotentParameterMismatchException",
    "TransactionCanceledException",
    "TransactionConflictException",
}
SCALARS = {"string": str, "integer": int, "long": int, "boolean": bool, "blob": bytes}
NO_TYPE = type(None)


def _unwrapped(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, UnionType):
        (annotation,) = (part for part in get_args(annotation) if part is not NO_TYPE)
    return annotation


def _differences(shape: Shape, annotation: Any, path: str) -> list[str]:
    """Differences of our type from the model's, as sentences."""
    annotation = _unwrapped(annotation)
    container = get_origin(annotation)
    match shape.type_name:
        case "structure":
            if not (isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)):
                return [f"{path}: a structure in the model, {annotation} here"]
            return _member_differences(shape, annotation)
        case "list":
            if container is not list:
                return [f"{path}: a list in the model, {annotation} here"]
            return _differences(shape.member, get_args(annotation)[0], f"{path}[]")
        case "map":
            if container is not dict or get_args(annotation)[0] is not str:
                return [f"{path}: a map in the model, {annotation} here"]
            return _differences(shape.value, get_args(annotation)[1], f"{path}{{}}")
    if SCALARS[shape.type_name] is not annotation:
        return [f"{path}: {shape.type_name} in the model, {annotation} here"]
    return []


def _member_differences(shape: Shape, struct: type[msgspec.Struct]) -> list[str]:
    ours = {info.encode_name: info for info in msgspec.structs.fields(struct)}
    members = dict(shape.members)
    if struct.__module__ == "visibility.contract.results":
        for name in list(members):
            if f"{shape.name}.{name}" in NOT_HANDED_OUT:
                del members[name]
    found = [f"{shape.name}.{name}: not here" for name in members if name not in ours]
    found += [f"{shape.name}.{name}: not in the model" for name in ours if name not in members]
    for name, member in members.items():
        if name in ours:
            found += _differences(member, ours[name].type, f"{shape.name}.{name}")
    return found


def test_actions_are_the_operations_of_the_model() -> None:
    assert set(ACTIONS) == set(MODEL.operation_names)


@pytest.mark.parametrize("action", ACTIONS)
def test_request_members_and_types(action: str) -> None:
    shape = MODEL.operation_model(action).input_shape

    assert _differences(shape, ACTIONS[action].request, action) == []


@pytest.mark.parametrize("action", ACTIONS)
def test_required_request_members(action: str) -> None:
    request = ACTIONS[action].request
    wire_names = dict(zip(request.__struct_fields__, request.__struct_encode_fields__, strict=True))
    required = [wire_names[field] for field in ACTIONS[action].required]

    assert (
        required + REQUIRED_ELSEWHERE.get(action, [])
        == MODEL.operation_model(action).input_shape.required_members
    )


@pytest.mark.parametrize("action", ACTIONS)
def test_result_members_and_types(action: str) -> None:
    shape = MODEL.operation_model(action).output_shape
    result = ACTIONS[action].result

    assert (shape is None) == (result is None)
    if shape is not None:
        assert _differences(shape, result, action) == []


def test_members_the_model_promises_are_always_sent() -> None:
    more: set[str] = set()
    fewer: set[str] = set()
    for name, action in ACTIONS.items():
        if action.result is not None:
            _compare_promises(MODEL.operation_model(name).output_shape, action.result, more, fewer)

    assert more == OPTIONAL_IN_THE_MODEL
    assert fewer == REQUIRED_IN_THE_MODEL_ONLY


def _compare_promises(
    shape: Shape, struct: type[msgspec.Struct], more: set[str], fewer: set[str]
) -> None:
    """Collect members we always send and the model calls optional, and the reverse."""
    for info in msgspec.structs.fields(struct):
        path = f"{shape.name}.{info.encode_name}"
        required = info.encode_name in shape.required_members
        if info.required != required:
            (more if info.required else fewer).add(path)
        inner = shape.members[info.encode_name]
        annotation = _unwrapped(info.type)
        if inner.type_name == "list" and inner.member.type_name == "structure":
            _compare_promises(inner.member, get_args(annotation)[0], more, fewer)
        if inner.type_name == "map" and inner.value.type_name == "structure":
            _compare_promises(inner.value, get_args(annotation)[1], more, fewer)


def test_nested_request_structures_have_the_model_names() -> None:
    for name, action in ACTIONS.items():
        for info in msgspec.structs.fields(action.request):
            annotation = _unwrapped(info.type)
            shape = MODEL.operation_model(name).input_shape.members[info.encode_name]
            if shape.type_name == "list" and shape.member.type_name == "structure":
                # The query protocol calls the elements by this name.
                assert get_args(annotation)[0].__name__ == shape.member.name


def test_errors_are_those_of_the_model() -> None:
    prefix = "com.amazonaws.sqs#"
    ours = {
        row.json_type.removeprefix(prefix)
        for row in TABLE.values()
        if row.json_type.startswith(prefix)
    }
    modelled = {shape.name for shape in MODEL.error_shapes}

    assert modelled - ours == ERRORS_WE_NEVER_SEND
    assert ours - modelled == ERRORS_OF_OUR_OWN_ACTIONS


def test_irregular_names_are_still_irregular() -> None:
    assert member_name("md5_of_body") == "MD5OfBody"
    members = MODEL.operation_model("ListDeadLetterSourceQueues").output_shape.members
    assert "queueUrls" in members
    assert "tags" in MODEL.operation_model("CreateQueue").input_shape.members
