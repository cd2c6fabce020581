"""ReplicaPort: a shard's way to its replicas on other hosts, over the connections of this host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec
import structlog
from typing_extensions import override

from cluster.peers.link import ChannelService, OnMessage
from cluster.peers.peer_outcomes import NotSent, Reason
from cluster.peers.peer_settings import Channel
from cluster.peers.transport import Transport
from cluster.replication.replica_messages import Message, decode_message, encode_message


class Messages(Protocol):
    """The messages between hosts: `PeerMessages`."""

    def join(self, shard: int, on_message: OnMessage) -> None:
        """Give a shard the messages that are meant for it, from now on."""

    def leave(self, shard: int) -> None:
        """Drop what is meant for a shard from now on."""

    def send(self, host: str, shard: int, body: bytes) -> NotSent | None:
        """Send to the same shard of another host. It may get lost; replicas know that."""


class PeerMessages(Messages):
    """Those of `Channel.REPLICATION`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._service = ChannelService()
        transport.serve(Channel.REPLICATION, self._service)

    @override
    def join(self, shard: int, on_message: OnMessage) -> None:
        self._service.on_message[shard] = on_message

    @override
    def leave(self, shard: int) -> None:
        self._service.on_message.pop(shard, None)

    @override
    def send(self, host: str, shard: int, body: bytes) -> NotSent | None:
        link = self._transport.link(host, Channel.REPLICATION)
        return NotSent(Reason.NOT_CONNECTED) if link is None else link.message(shard, body)


class ReplicaPort:
    """The `Network` of one shard's replica."""

    def __init__(self, messages: Messages, shard: int) -> None:
        self._messages = messages
        self._shard = shard

    def send(self, to: str, message: Message) -> None:
        """Send a peer a message, which is lost if there is no connection."""
        self._messages.send(to, self._shard, encode_message(message))

    def join(self, receive: Callable[[str, Message], None]) -> None:
        """Give `receive` each message and the host that sent it, from now on."""

        def on_message(sender: str, body: bytes) -> None:
            try:
                message = decode_message(body)
            except msgspec.MsgspecError as error:
                structlog.get_logger("replicas").error(
                    "message_unreadable", shard=self._shard, peer=sender, error=str(error)
                )
                return
            receive(sender, message)

        self._messages.join(self._shard, on_message)

    def leave(self) -> None:
        """Drop what comes from now on."""
        self._messages.leave(self._shard)
