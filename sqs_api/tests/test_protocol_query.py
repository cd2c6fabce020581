"""The query protocol: numbered lists and maps, percent-encoding, XML and the JSON form of
answers."""

from __future__ import annotations

import json

import pytest

from sqs_api.protocol.codec import Wire, decode_request, encode_result
from sqs_api.protocol.fields import INDEX_MAX
from sqs_api.protocol.query_codec import PARAMETERS_MAX
from visibility.contract import operations, results
from visibility.contract.errors import InvalidParameterValue, InvalidRequest, MissingParameter

XMLNS = 'xmlns="http://queue.amazonaws.com/doc/2012-11-05/"'


def _decode(form: bytes) -> operations.Operation:
    return decode_request(b"POST", b"/", {}, form).operation


@pytest.mark.parametrize(
    ("form", "operation"),
    [
        (
            b"Action=CreateQueue&QueueName=q&Attribute.1.Name=DelaySeconds&Attribute.1.Value=5"
            b"&Tag.1.Key=a&Tag.1.Value=",
            operations.CreateQueue("q", {"DelaySeconds": "5"}, {"a": ""}),
        ),
        (
            b"Action=CreateQueue&QueueName=q&Tags.1.Key=a&Tags.1.Value=1&Tag.1.Key=b&Tag.1.Value=2",
            operations.CreateQueue("q", None, {"a": "1", "b": "2"}),
        ),
        (
            b"Action=TagQueue&Tags.1.Key=a&Tags.1.Value=1&Tags.2.Key=b&Tags.2.Value=",
            operations.TagQueue(tags={"a": "1", "b": ""}),
        ),
        (
            b"Action=AddPermission&Label=l&AWSAccountId.1=1&AWSAccountId.2=2&ActionName.1=*",
            operations.AddPermission(label="l", aws_account_ids=["1", "2"], actions=["*"]),
        ),
        (
            b"Action=UntagQueue&TagKey.1=a&TagKey.2=b",
            operations.UntagQueue(tag_keys=["a", "b"]),
        ),
        (
            b"Action=SendMessage&MessageBody=b&DelaySeconds=0&MessageAttribute.1.Name=n"
            b"&MessageAttribute.1.Value.DataType=Binary&MessageAttribute.1.Value.BinaryValue=AP8%3D"
            b"&MessageSystemAttribute.1.Name=AWSTraceHeader"
            b"&MessageSystemAttribute.1.Value.DataType=String"
            b"&MessageSystemAttribute.1.Value.StringValue=Root%3D1",
            operations.SendMessage(
                message_body="b",
                delay_seconds=0,
                message_attributes={
                    "n": operations.MessageAttributeValue(
                        data_type="Binary", binary_value=b"\x00\xff"
                    )
                },
                message_system_attributes={
                    "AWSTraceHeader": operations.MessageAttributeValue(
                        data_type="String", string_value="Root=1"
                    )
                },
            ),
        ),
        (
            b"Action=SendMessageBatch&SendMessageBatchRequestEntry.1.Id=a"
            b"&SendMessageBatchRequestEntry.1.MessageBody=x"
            b"&SendMessageBatchRequestEntry.1.MessageAttribute.1.Name=n"
            b"&SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.DataType=String"
            b"&SendMessageBatchRequestEntry.2.Id=b",
            operations.SendMessageBatch(
                entries=[
                    operations.SendMessageBatchRequestEntry(
                        id="a",
                        message_body="x",
                        message_attributes={
                            "n": operations.MessageAttributeValue(data_type="String")
                        },
                    ),
                    operations.SendMessageBatchRequestEntry(id="b"),
                ]
            ),
        ),
        (
            b"Action=ChangeMessageVisibilityBatch"
            b"&ChangeMessageVisibilityBatchRequestEntry.1.VisibilityTimeout=0",
            operations.ChangeMessageVisibilityBatch(
                entries=[operations.ChangeMessageVisibilityBatchRequestEntry(visibility_timeout=0)]
            ),
        ),
    ],
)
def test_lists_maps_and_structures_decode(form: bytes, operation: operations.Operation) -> None:
    assert _decode(form) == operation


@pytest.mark.parametrize(
    "form",
    [
        b"AttributeName.1=a&AttributeName.2=b",
        b"AttributeName.2=b&AttributeName.1=a",
        b"AttributeName.7=b&AttributeName.3=a",
        b"AttributeName.10=b&AttributeName.9=a",
        b"AttributeName.member.1=a&AttributeName.member.2=b",
        b"AttributeName.1=a&AttributeName.2147483=b&AttributeName.x=c&AttributeName.1.x=d",
        b"AttributeName.1=a&AttributeName.1=z&AttributeName.2=b",
    ],
)
def test_lists_are_ordered_by_number_and_gaps_do_not_matter(form: bytes) -> None:
    assert _decode(b"Action=GetQueueAttributes&" + form) == operations.GetQueueAttributes(
        attribute_names=["a", "b"]
    )


def test_single_element_may_be_unnumbered() -> None:
    assert _decode(b"Action=GetQueueAttributes&AttributeName=All") == operations.GetQueueAttributes(
        attribute_names=["All"]
    )
    assert _decode(b"Action=GetQueueAttributes&AttributeName=") == operations.GetQueueAttributes()
    assert _decode(
        b"Action=SetQueueAttributes&Attribute.Name=DelaySeconds&Attribute.Value=5"
    ) == operations.SetQueueAttributes(attributes={"DelaySeconds": "5"})


def test_both_names_of_system_attributes_are_accepted() -> None:
    assert _decode(
        b"Action=ReceiveMessage&AttributeName.1=All&AttributeName.2=SenderId"
    ) == operations.ReceiveMessage(attribute_names=["All", "SenderId"])
    assert _decode(
        b"Action=ReceiveMessage&MessageSystemAttributeName.1=All"
    ) == operations.ReceiveMessage(message_system_attribute_names=["All"])


@pytest.mark.parametrize(
    ("encoded", "text"),
    [
        (b"a+b%20c%2Bd", "a b c+d"),
        (b"%F0%9F%98%80%c3%a9", "😀é"),
        ("é".encode(), "é"),
        (b"back\\slash\\x41\\u0041\\n%5C", "back\\slash\\x41\\u0041\\n\\"),
        (b"%26quot%3B%0D%0A=%3D", "&quot;\r\n=="),
        (b"%00", "\x00"),
        (b"", ""),
    ],
)
def test_percent_encoding(encoded: bytes, text: str) -> None:
    assert _decode(b"Action=SendMessage&MessageBody=" + encoded) == operations.SendMessage(
        message_body=text
    )


@pytest.mark.parametrize(
    "form",
    [
        b"MessageBody=%ff",
        b"MessageBody=\xff",
        b"MessageBody=%ED%A0%80",
        b"MessageBody=100%",
        b"MessageBody=%4",
        b"MessageBody=%zz",
        b"%ff=a",
        b"DelaySeconds=abc",
        b"DelaySeconds=",
        b"DelaySeconds=1.0",
        b"DelaySeconds=" + b"9" * 10_000,
        "DelaySeconds=\u0663".encode(),
        b"MessageAttribute.0.Name=a",
        b"MessageAttribute.99999999999.Name=a",
        b"MessageAttribute.%d.Name=a" % (INDEX_MAX + 1),
        b"MessageAttribute.1.Name=a&MessageAttribute.1.Value.BinaryValue=!!",
        b"MessageAttribute.1.Name=a&MessageAttribute.1.Value.BinaryValue=\xc3\xa9",
    ],
)
def test_what_cannot_be_read_is_refused(form: bytes) -> None:
    with pytest.raises(InvalidRequest):
        _decode(b"Action=SendMessage&" + form)


@pytest.mark.parametrize(
    ("form", "parameter"),
    [
        (b"Attribute.2.Value=5", "Attribute.2.Name"),
        (b"Attribute.2.Name=DelaySeconds", "Attribute.2.Value"),
        (b"Attribute.Name=DelaySeconds", "Attribute.Value"),
    ],
)
def test_half_a_map_entry_is_refused(form: bytes, parameter: str) -> None:
    with pytest.raises(MissingParameter) as refusal:
        _decode(b"Action=SetQueueAttributes&" + form)

    assert refusal.value.message == f"The request must contain the parameter {parameter}."


@pytest.mark.parametrize(
    ("form", "key", "parameter"),
    [
        (
            b"Action=SendMessage&MessageAttribute.1.Name=a&MessageAttribute.2.Name=a"
            b"&MessageAttribute.1.Value.DataType=String&MessageAttribute.2.Value.DataType=String",
            "a",
            "MessageAttribute.2.Name",
        ),
        (
            b"Action=SetQueueAttributes&Attribute.3.Name=DelaySeconds&Attribute.3.Value=1"
            b"&Attribute.1.Name=DelaySeconds&Attribute.1.Value=1",
            "DelaySeconds",
            "Attribute.3.Name",
        ),
        (
            b"Action=TagQueue&Tag.1.Key=k&Tag.1.Value=1&Tag.2.Key=k&Tag.2.Value=2",
            "k",
            "Tag.2.Key",
        ),
    ],
)
def test_a_key_that_comes_twice_is_refused(form: bytes, key: str, parameter: str) -> None:
    with pytest.raises(InvalidParameterValue) as refusal:
        _decode(form)

    assert refusal.value.message == (
        f"Value {key} for parameter {parameter} is invalid. Reason: Already exists."
    )


def test_integers_may_be_negative() -> None:
    assert _decode(b"Action=SendMessage&DelaySeconds=-1") == operations.SendMessage(
        delay_seconds=-1
    )


def test_thousands_of_parameters_are_read_or_refused_at_once() -> None:
    pairs = [b"TagKey.%d=k%d" % (index, index) for index in range(PARAMETERS_MAX - 1, 0, -1)]
    operation = _decode(b"Action=UntagQueue&" + b"&".join(pairs))

    assert isinstance(operation, operations.UntagQueue)
    assert operation.tag_keys == [f"k{index}" for index in range(1, PARAMETERS_MAX)]
    with pytest.raises(InvalidRequest):
        _decode(b"Action=UntagQueue&" + b"&" * PARAMETERS_MAX)


def _xml(action: str, result: results.Result | None) -> str:
    return encode_result(action, Wire.QUERY_XML, result, "req").decode()


def test_empty_receive_is_an_empty_element() -> None:
    assert _xml("ReceiveMessage", results.ReceiveMessageResult()) == (
        f'<?xml version="1.0"?><ReceiveMessageResponse {XMLNS}><ReceiveMessageResult/>'
        "<ResponseMetadata><RequestId>req</RequestId></ResponseMetadata></ReceiveMessageResponse>"
    )


def test_attributes_are_name_and_value_without_white_space() -> None:
    result = results.GetQueueAttributesResult({"QueueArn": "arn", "DelaySeconds": "0"})

    assert (
        "<GetQueueAttributesResult><Attribute><Name>QueueArn</Name><Value>arn</Value></Attribute>"
        "<Attribute><Name>DelaySeconds</Name><Value>0</Value></Attribute>"
        "</GetQueueAttributesResult>"
    ) in _xml("GetQueueAttributes", result)


def test_tags_and_lists_and_failures() -> None:
    tags = results.ListQueueTagsResult({"k": "v"})
    urls = results.ListQueuesResult(["http://h/1/a", "http://h/1/b"], "next")
    batch = results.DeleteMessageBatchResult(
        [results.DeleteMessageBatchResultEntry("a")],
        [results.BatchResultErrorEntry("b", True, "ReceiptHandleIsInvalid", "no")],
    )

    assert "<Tag><Key>k</Key><Value>v</Value></Tag>" in _xml("ListQueueTags", tags)
    assert (
        "<QueueUrl>http://h/1/a</QueueUrl><QueueUrl>http://h/1/b</QueueUrl>"
        "<NextToken>next</NextToken>"
    ) in _xml("ListQueues", urls)
    assert (
        "<DeleteMessageBatchResultEntry><Id>a</Id></DeleteMessageBatchResultEntry>"
        "<BatchResultErrorEntry><Id>b</Id><SenderFault>true</SenderFault>"
        "<Code>ReceiptHandleIsInvalid</Code><Message>no</Message></BatchResultErrorEntry>"
    ) in _xml("DeleteMessageBatch", batch)


@pytest.mark.parametrize(
    ("body", "escaped"),
    [
        ("a\r\nb\tc", "a&#xD;\nb\tc"),
        ("&quot;", "&amp;quot;"),
        ('<a b="c">\'&', "&lt;a b=&quot;c&quot;&gt;'&amp;"),
        ("\r&#xD;&amp;#xD;", "&#xD;&amp;#xD;&amp;amp;#xD;"),
        ("]]>", "]]&gt;"),
        ("é😀\x85", "é😀\x85"),
    ],
)
def test_bodies_are_escaped_so_that_parsers_give_them_back(body: str, escaped: str) -> None:
    message = results.Message("i", "h", "m", body)

    assert f"<Body>{escaped}</Body>" in _xml(
        "ReceiveMessage", results.ReceiveMessageResult([message])
    )


def _json_form(action: str, result: results.Result | None) -> object:
    return json.loads(encode_result(action, Wire.QUERY_JSON, result, "req"))


def test_json_form_of_query_answers() -> None:
    attribute = results.ReceivedAttributeValue(string_value="v", data_type="String")
    message = results.Message(
        "i", "h", "m", "b", attributes={"SenderId": "1"}, message_attributes={"n": attribute}
    )
    metadata = {"RequestId": "req"}

    assert _json_form("ReceiveMessage", results.ReceiveMessageResult([message])) == {
        "ReceiveMessageResponse": {
            "ReceiveMessageResult": {
                "messages": [
                    {
                        "Attributes": [{"Name": "SenderId", "Value": "1"}],
                        "Body": "b",
                        "MD5OfBody": "m",
                        "MD5OfMessageAttributes": None,
                        "MessageAttributes": [
                            {
                                "Name": "n",
                                "Value": {
                                    "BinaryValue": None,
                                    "DataType": "String",
                                    "StringValue": "v",
                                },
                            }
                        ],
                        "MessageId": "i",
                        "ReceiptHandle": "h",
                    }
                ]
            },
            "ResponseMetadata": metadata,
        }
    }
    assert _json_form("ListQueues", results.ListQueuesResult(["u"])) == {
        "ListQueuesResponse": {
            "ListQueuesResult": {"NextToken": None, "queueUrls": ["u"]},
            "ResponseMetadata": metadata,
        }
    }
    assert _json_form("DeleteQueue", None) == {
        "DeleteQueueResponse": {"ResponseMetadata": metadata}
    }


def test_json_form_of_a_send_is_what_api_gateway_shows() -> None:
    body = encode_result(
        "SendMessage", Wire.QUERY_JSON, results.SendMessageResult("md5", "id"), "req"
    )

    assert body == (
        b'{"SendMessageResponse":{"ResponseMetadata":{"RequestId":"req"},"SendMessageResult":'
        b'{"MD5OfMessageAttributes":null,"MD5OfMessageBody":"md5",'
        b'"MD5OfMessageSystemAttributes":null,"MessageId":"id","SequenceNumber":null}}}'
    )
