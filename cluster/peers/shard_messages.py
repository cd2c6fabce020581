"""ShardMessages: the replication channel, shared by the shards of a host.

    message: shard (4), its bytes

A message may get lost; the replicas know that.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from cluster.peers.incoming import Service
from cluster.peers.peer_outcomes import NotSent, Reason
from cluster.peers.peer_settings import Channel
from cluster.peers.transport import Transport

_HEAD = Struct(">I")
OnMessage = Callable[[str, bytes], None]
"""Gets the host that sent a message, and its bytes."""


class ShardMessages:
    """Belongs to the event loop's thread."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._shards: dict[int, OnMessage] = {}
        transport.serve(Channel.REPLICATION, Service(on_message=self._received))

    def join(self, shard: int, on_message: OnMessage) -> None:
        """Give a shard the messages that are meant for it, from now on."""
        self._shards[shard] = on_message

    def leave(self, shard: int) -> None:
        """Drop what is meant for a shard from now on."""
        self._shards.pop(shard, None)

    def send(self, host: str, shard: int, body: bytes) -> NotSent | None:
        """Send to the same shard of another host."""
        link = self._transport.link(host, Channel.REPLICATION)
        if link is None:
            return NotSent(Reason.NOT_CONNECTED)
        return link.message(_HEAD.pack(shard) + body)

    def _received(self, peer: str, message: bytes) -> None:
        (shard,) = _HEAD.unpack_from(message)
        on_message = self._shards.get(shard)
        if on_message is not None:
            on_message(peer, message[_HEAD.size :])
