"""PeerLog: one log line when a host comes, goes, or refuses, not one for each of its channels."""

from __future__ import annotations

import structlog

from cluster.peers.peer_outcomes import Refused
from cluster.peers.peer_settings import host_of

_OF_HOST = (
    "requests and copies do not reach that host; the others serve while they are a majority",
    "start that host, or check its address, network and certificates; it is tried again",
)
_OF_WORKER = (
    "requests do not reach that worker of this host; those for its queues wait",
    "none: the service replaces it when it has ended. If it lasts, see the lines of the supervisor",
)
"""The meaning of a process that is not reached, and what to do."""


class PeerLog:
    """The log lines of one host."""

    def __init__(self, host: str, *, is_between_workers: bool) -> None:
        """`host` is this one; all peers are workers of it if `is_between_workers`."""
        self._host = host
        self._is_between_workers = is_between_workers
        self._open: dict[str, set[str]] = {}
        """Channels that are connected, by host."""
        self._reported: dict[str, set[str]] = {}
        """Lines logged of each host since it was last reached."""
        self._refused: dict[str, dict[str, Refused]] = {}
        """By host and channel: the refusal since it was last welcomed there."""
        self._log = structlog.get_logger("peers")

    def opened(self, peer: str, channel: str, version: int) -> None:
        """A channel of this host stands."""
        channels = self._open.setdefault(peer, set())
        if not channels:
            self._reported.pop(peer, None)
            self._log.info("peer_connected", peer=peer, version=version)
        channels.add(channel)

    def closed(self, peer: str, channel: str, reason: str) -> None:
        """A channel that stood is over."""
        channels = self._open.setdefault(peer, set())
        channels.discard(channel)
        if not channels:
            self._log.info("peer_disconnected", peer=peer, reason=reason)

    def failed(self, peer: str, reason: str) -> None:
        """A host that is away says the same again and again."""
        reported = self._reported.setdefault(peer, set())
        if reason not in reported:
            reported.add(reason)
            is_worker = self._is_between_workers or host_of(peer) == host_of(self._host)
            means, action = _OF_WORKER if is_worker else _OF_HOST
            self._log.warning(
                "peer_unreachable", peer=peer, reason=reason, means=means, action=action
            )

    def refused(self, peer: str, channel: str, refusal: Refused) -> None:
        """This host does not let another one connect."""
        refusals = self._refused.setdefault(peer, {})
        is_known = refusal in refusals.values()
        refusals[channel] = refusal
        if not is_known:
            self._log.warning(
                "peer_refused",
                peer=peer,
                reason=refusal.reason,
                detail=refusal.detail,
                action="check that host's settings and certificates; it tries again",
            )

    def welcomed(self, peer: str, channel: str) -> None:
        """The other host connected."""
        self._refused.get(peer, {}).pop(channel, None)
