"""The settings of a worker: those of the service, with its share of what all workers have together.

They go to the worker as JSON over a pair of sockets that nobody else can read, with the secrets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from pydantic import SecretStr

from sqs_api.settings.config import Settings

_MEMORY_MIN = 8 << 20


def shares(settings: Settings, workers: int) -> dict[str, object]:
    """The number of workers, and the settings that are divided over them."""
    return {
        "workers": str(workers),
        "connections_max": max(1, settings.connections_max // workers),
        "request_memory_bytes": max(_MEMORY_MIN, settings.request_memory_bytes // workers),
        "waiting_polls_max": max(1, settings.waiting_polls_max // workers),
    }


def settings_of_each(settings: Settings, workers: int) -> Settings:
    """The settings of each of the workers. What is declared is made by the supervisor."""
    return settings.model_copy(
        update={
            **shares(settings, workers),
            "queues": (),
            "users": (),
            "access_key_id": None,
            "secret_access_key": None,
        }
    )


def encoded_settings(settings: Settings) -> bytes:
    """The settings for another process."""
    return msgspec.json.encode(settings.model_dump(), enc_hook=_plain)


def decoded_settings(encoded: bytes) -> Settings:
    """The settings again."""
    given: dict[str, Any] = msgspec.json.decode(encoded)
    return Settings(**given)


def _plain(value: object) -> object:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value))
