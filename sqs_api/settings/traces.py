"""Settings of the export of traces."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator
from pydantic_settings import BaseSettings, SettingsConfigDict

_ENDPOINT = re.compile(r"https?://[^/\s?#@]+(/[^\s?#]*)?")


def _endpoint(text: str | None) -> str | None:
    if text is not None and _ENDPOINT.fullmatch(text) is None:
        raise ValueError("must be an http:// or https:// address")
    return text


class TraceSettings(BaseSettings):
    """The collector of spans."""

    model_config = SettingsConfigDict(use_attribute_docstrings=True)

    otlp_endpoint: Annotated[str | None, AfterValidator(_endpoint)] = None
    """Address of an OpenTelemetry collector (OTLP over HTTP), such as "http://localhost:4318": it
    gets a span from the send to the receive of each message that carries a trace; by default
    none."""
