"""Messages with packed content, for rules that open them."""

from __future__ import annotations

from visibility.content.content import contents_of
from visibility.contract.model import Content, QueueDefinition, Request
from visibility.contract.operations import MessageAttributeValue, SendMessage
from visibility.tests import prepared


def send_packed(
    queue: QueueDefinition, body: str, *, group: str | None = None, **attributes: str
) -> Request:
    """SendMessage as the gateway prepares it; `attributes` are strings."""
    operation = SendMessage(
        message_body=body,
        message_attributes={
            name: MessageAttributeValue("String", value) for name, value in attributes.items()
        }
        or None,
        message_group_id=group,
        message_deduplication_id=body.replace(" ", "_")[:100] if queue.settings.fifo else None,
    )
    (content,) = contents_of(operation, queue, "sender", None)
    assert isinstance(content, Content)
    return prepared.prepared(queue, operation, [content])
