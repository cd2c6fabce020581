"""Process: all that a part of the service is made from; Feature: all that it adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from types import MappingProxyType
from typing import NamedTuple

from cluster.clock import Clock, Entropy
from sqs_api.gateway.metrics import Source
from sqs_api.gateway.other_services import OtherService
from sqs_api.gateway.payload import OnOpened
from sqs_api.periodic import Every
from sqs_api.settings.config import Settings


class Process(NamedTuple):
    """One process of the service."""

    settings: Settings
    clock: Clock
    entropy: Entropy
    opened: AsyncExitStack
    """Closes, last first, what the parts have opened; also after a start that failed."""


class Feature(NamedTuple):
    """All that a part adds to the service: a new part is one more of these."""

    parts: Mapping[type, object] = MappingProxyType({})
    """They answer routes of the admin API, by their type."""
    services: Sequence[OtherService] = ()
    """Services beside SQS on the same endpoint."""
    on_opened: Sequence[OnOpened] = ()
    """They see each message that is handed out."""
    metrics: Sequence[Source] = ()
    periodic: Sequence[Every] = ()


def parts_of(features: Sequence[Feature]) -> dict[type, object]:
    """The parts that answer routes, of all features."""
    return {kind: part for feature in features for kind, part in feature.parts.items()}
