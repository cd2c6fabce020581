"""TABLE: names of the query protocol that do not follow from the name of the field.

The JSON protocol needs nothing from here: its names are the Structs' own
(`visibility.contract.operations`, `.results`).
Source: the query-era SQS service model (flattened lists and maps);
sqs_api/tests/test_protocol_model.py checks every row against it.
"""

from __future__ import annotations

from typing import NamedTuple

XML_NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
TARGET_PREFIX = "AmazonSQS."

CONTENT_TYPE_AWS_JSON = b"application/x-amz-json-1.0"
CONTENT_TYPE_FORM = b"application/x-www-form-urlencoded"
CONTENT_TYPE_XML = b"text/xml"
CONTENT_TYPE_JSON = b"application/json"

LIST_ELEMENTS: dict[str, str] = {
    "actions": "ActionName",
    "attribute_names": "AttributeName",
    "aws_account_ids": "AWSAccountId",
    "binary_list_values": "BinaryListValue",
    "message_attribute_names": "MessageAttributeName",
    "message_system_attribute_names": "MessageSystemAttributeName",
    "queue_urls": "QueueUrl",
    "source_queue_urls": "QueueUrl",
    "string_list_values": "StringListValue",
    "tag_keys": "TagKey",
}
"""Field -> element name, for lists of strings and blobs. A list of structures is named after the
structure."""


class MapElement(NamedTuple):
    """The element of a flattened map, and the names of its key and value."""

    element: str
    key: str
    value: str


MAP_ELEMENTS: dict[str, MapElement] = {
    "attributes": MapElement("Attribute", "Name", "Value"),
    "message_attributes": MapElement("MessageAttribute", "Name", "Value"),
    "message_system_attributes": MapElement("MessageSystemAttribute", "Name", "Value"),
    "tags": MapElement("Tag", "Key", "Value"),
    "tags_on_create": MapElement("Tag", "Key", "Value"),
}
"""Field -> element names, for maps."""

ALSO_READ = {"tags": "Tags", "tags_on_create": "Tags"}
"""Field -> a second element name, read as the first. Source: TagQueue as both Java SDKs of the
query generation send it."""

JSON_FORM_MEMBERS: dict[str, str] = {
    "messages": "messages",
    "queue_urls": "queueUrls",
}
"""Field -> member name where the JSON form of a query answer differs from the Struct's name.

Source: answers of AWS to query requests with `Accept: application/json`, as API Gateway hands them
on.
"""
