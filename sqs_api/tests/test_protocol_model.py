"""Every action in both protocols against botocore: its serializers write requests, its parsers read
our answers.

botocore's own SQS model is JSON only, so the query side runs on a copy of it with the names below
put back in. Source of the names: the service model of botocore 1.31.80, the last release that spoke
the query protocol.
"""

from __future__ import annotations

import copy
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from botocore.loaders import Loader
from botocore.model import ServiceModel, Shape
from botocore.parsers import create_parser
from botocore.serialize import create_serializer

from sqs_api.protocol import codec, fields, wire_names
from visibility.contract import operations, results
from visibility.contract.actions import ACTIONS

LIST_ELEMENTS = {
    "AWSAccountIdList": "AWSAccountId",
    "ActionNameList": "ActionName",
    "AttributeNameList": "AttributeName",
    "BatchResultErrorEntryList": "BatchResultErrorEntry",
    "BinaryList": "BinaryListValue",
    "ChangeMessageVisibilityBatchRequestEntryList": "ChangeMessageVisibilityBatchRequestEntry",
    "ChangeMessageVisibilityBatchResultEntryList": "ChangeMessageVisibilityBatchResultEntry",
    "DeleteMessageBatchRequestEntryList": "DeleteMessageBatchRequestEntry",
    "DeleteMessageBatchResultEntryList": "DeleteMessageBatchResultEntry",
    "ListMessageMoveTasksResultEntryList": "ListMessageMoveTasksResultEntry",
    "MessageAttributeNameList": "MessageAttributeName",
    "MessageList": "Message",
    # Younger than the query-era model; the name is AWS's documentation of the query parameter.
    "MessageSystemAttributeList": "MessageSystemAttributeName",
    "QueueUrlList": "QueueUrl",
    "SendMessageBatchRequestEntryList": "SendMessageBatchRequestEntry",
    "SendMessageBatchResultEntryList": "SendMessageBatchResultEntry",
    "StringList": "StringListValue",
    "TagKeyList": "TagKey",
}
MAP_NAMES = {
    # shape: name of the element when the member gives none, key, value
    "MessageBodyAttributeMap": ("MessageAttribute", "Name", "Value"),
    "MessageBodySystemAttributeMap": ("MessageSystemAttribute", "Name", "Value"),
    "MessageSystemAttributeMap": ("Attribute", "Name", "Value"),
    "QueueAttributeMap": ("Attribute", "Name", "Value"),
    "TagMap": ("Tag", "Key", "Value"),
}
MEMBER_NAMES = {
    "CreateQueueRequest.Attributes": "Attribute",
    "CreateQueueRequest.tags": "Tag",
    "GetQueueAttributesResult.Attributes": "Attribute",
    "ListQueueTagsResult.Tags": "Tag",
    "Message.Attributes": "Attribute",
    "Message.MessageAttributes": "MessageAttribute",
    "MessageAttributeValue.BinaryListValues": "BinaryListValue",
    "MessageAttributeValue.StringListValues": "StringListValue",
    "MessageSystemAttributeValue.BinaryListValues": "BinaryListValue",
    "MessageSystemAttributeValue.StringListValues": "StringListValue",
    "SendMessageBatchRequestEntry.MessageAttributes": "MessageAttribute",
    "SendMessageBatchRequestEntry.MessageSystemAttributes": "MessageSystemAttribute",
    "SendMessageRequest.MessageAttributes": "MessageAttribute",
    "SendMessageRequest.MessageSystemAttributes": "MessageSystemAttribute",
    "SetQueueAttributesRequest.Attributes": "Attribute",
}

TEXT = "a <b> & \"c\" &quot; 'd'\r\n\té+%41\\x41 😀"
NOT_HANDED_OUT = {"StringListValues", "BinaryListValues"}  # AWS reserves them; answers have none


def _query_shaped(model: dict[str, Any]) -> dict[str, Any]:
    model = copy.deepcopy(model)
    model["metadata"] |= {"protocol": "query", "protocols": ["query"]}
    model["metadata"]["xmlNamespace"] = wire_names.XML_NAMESPACE
    for operation in model["operations"].values():
        if "output" in operation:
            operation["output"]["resultWrapper"] = operation["name"] + "Result"
    for name, shape in model["shapes"].items():
        if shape["type"] == "list":
            shape["flattened"] = True
            shape["member"]["locationName"] = LIST_ELEMENTS[name]
        elif shape["type"] == "map":
            shape["flattened"] = True
            shape["locationName"], shape["key"]["locationName"], shape["value"]["locationName"] = (
                MAP_NAMES[name]
            )
        elif shape["type"] == "structure":
            for member_name, member in shape["members"].items():
                if (location := MEMBER_NAMES.get(f"{name}.{member_name}")) is not None:
                    member["locationName"] = location
    return model


_MODEL = Loader().load_service_model("sqs", "service-2")
JSON_MODEL = ServiceModel(_MODEL, "sqs")
QUERY_MODEL = ServiceModel(_query_shaped(_MODEL), "sqs")


def _example(shape: Shape, name: str) -> Any:
    """A value for a shape of the model, with every member set."""
    match shape.type_name:
        case "string":
            return f"{name} {TEXT}"
        case "integer" | "long":
            return 7
        case "boolean":
            return True
        case "blob":
            return b"\x00\xff+/=" + name.encode()
        case "list":
            return [_example(shape.member, f"{name}{index}") for index in range(12)]
        case "map":
            return {f"{name}{index} &": _example(shape.value, f"v{index}") for index in (1, 2)}
        case "structure":
            return {member: _example(inner, member) for member, inner in shape.members.items()}
    raise AssertionError(shape.type_name)


def _expected(action: str, params: dict[str, Any]) -> operations.Operation:
    return msgspec.convert(params, ACTIONS[action].request, builtin_types=(bytes,))


def _without_reserved(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_reserved(v) for k, v in value.items() if k not in NOT_HANDED_OUT}
    return [_without_reserved(v) for v in value] if isinstance(value, list) else value


def _answer(action: str) -> tuple[dict[str, Any], results.Result]:
    """A full answer of an action, as botocore would return it and as the engine would."""
    params = _without_reserved(_example(JSON_MODEL.operation_model(action).output_shape, action))
    result_type = ACTIONS[action].result
    assert result_type is not None
    result = msgspec.convert(params, result_type, builtin_types=(bytes,))
    assert isinstance(result, results.Result)
    return params, result


def _headers(serialized: dict[str, Any]) -> dict[bytes, bytes]:
    return {k.lower().encode(): v.encode() for k, v in serialized["headers"].items()}


WITH_RESULT = [name for name, action in ACTIONS.items() if action.result is not None]


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("full", [True, False])
def test_json_request_of_botocore_decodes_to_the_operation(action: str, full: bool) -> None:
    operation = JSON_MODEL.operation_model(action)
    params = _example(operation.input_shape, action) if full else {}
    sent = create_serializer("json", include_validation=False).serialize_to_request(
        params, operation
    )

    decoded = codec.decode_request(b"POST", b"/", _headers(sent), sent["body"])

    assert decoded == codec.Decoded(_expected(action, params), action, codec.Wire.JSON)


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_query_request_of_botocore_decodes_to_the_operation(
    action: str, full: bool, method: bytes
) -> None:
    operation = QUERY_MODEL.operation_model(action)
    params = _example(operation.input_shape, action) if full else {}
    if action == "ReceiveMessage":
        params.pop("MessageSystemAttributeNames", None)  # shares AttributeName.N, tested on its own
    sent = create_serializer("query", include_validation=False).serialize_to_request(
        params, operation
    )
    form = _form_encoded(sent["body"])

    if method == b"GET":
        decoded = codec.decode_request(b"GET", b"/?" + form, {}, b"")
    else:
        decoded = codec.decode_request(b"POST", b"/", _headers(sent), form)

    assert decoded == codec.Decoded(_expected(action, params), action, codec.Wire.QUERY_XML)


def _form_encoded(params: dict[str, Any]) -> bytes:
    return urlencode(params).encode()


@pytest.mark.parametrize("action", WITH_RESULT)
def test_json_answer_reads_back_through_botocore(action: str) -> None:
    params, result = _answer(action)
    body = codec.encode_result(action, codec.Wire.JSON, result, "request-1")

    parsed = create_parser("json").parse(
        {"status_code": 200, "headers": {}, "body": body},
        JSON_MODEL.operation_model(action).output_shape,
    )

    del parsed["ResponseMetadata"]
    assert parsed == params


@pytest.mark.parametrize("action", WITH_RESULT)
def test_xml_answer_reads_back_through_botocore(action: str) -> None:
    params, result = _answer(action)
    body = codec.encode_result(action, codec.Wire.QUERY_XML, result, "request-1")

    parsed = create_parser("query").parse(
        {"status_code": 200, "headers": {}, "body": body},
        QUERY_MODEL.operation_model(action).output_shape,
    )

    assert parsed.pop("ResponseMetadata") == {
        "RequestId": "request-1",
        "HTTPStatusCode": 200,
        "HTTPHeaders": {},
    }
    assert parsed == params


@pytest.mark.parametrize("action", [name for name in ACTIONS if name not in WITH_RESULT])
def test_answer_without_result_has_only_response_metadata(action: str) -> None:
    xml = codec.encode_result(action, codec.Wire.QUERY_XML, None, "r")

    assert xml.decode() == (
        f'<?xml version="1.0"?><{action}Response xmlns="{wire_names.XML_NAMESPACE}">'
        f"<ResponseMetadata><RequestId>r</RequestId></ResponseMetadata></{action}Response>"
    )
    assert codec.encode_result(action, codec.Wire.JSON, None, "r") == b"{}"


def test_wire_table_has_the_names_of_the_query_era_model() -> None:
    lists: dict[str, str] = {}
    maps: dict[str, wire_names.MapElement] = {}

    for struct in _all_structs():
        for shape in fields.shapes(struct):
            if shape.container is list and shape.field in wire_names.LIST_ELEMENTS:
                lists[shape.field] = wire_names.LIST_ELEMENTS[shape.field]
            if shape.container is dict:
                maps[shape.field] = wire_names.MAP_ELEMENTS[shape.field]

    assert lists == wire_names.LIST_ELEMENTS, "a row that no field uses"
    assert maps == wire_names.MAP_ELEMENTS, "a row that no field uses"
    assert set(lists.values()) <= set(LIST_ELEMENTS.values())
    assert {tuple(row) for row in maps.values()} == set(MAP_NAMES.values())


def _all_structs() -> list[type[msgspec.Struct]]:
    return [
        struct
        for module in (operations, results)
        for struct in vars(module).values()
        if isinstance(struct, type) and issubclass(struct, msgspec.Struct)
    ]
