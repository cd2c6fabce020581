"""Settings of the requests that the service makes by itself: spans and webhooks."""

from __future__ import annotations

import base64
import binascii
import re
from functools import partial
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, SecretStr

_URL = re.compile(r"https?://[^/\s?#@]+([/?][^\s#]*)?")
_ENDPOINT = re.compile(r"https?://[^/\s?#@]+(/[^\s?#]*)?")
_PREFIX = "whsec_"
_SECRET_BYTES_MIN = 24
"""As Standard Webhooks asks for."""


def _address(form: re.Pattern[str], text: str | None) -> str | None:
    if text is not None and form.fullmatch(text) is None:
        raise ValueError("must be an http:// or https:// address")
    return text


def secret_of(text: str) -> bytes:
    """The key in `whsec_` and base64. Raises ValueError."""
    try:
        secret = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        secret = b""
    if not text.startswith(_PREFIX) or len(secret) < _SECRET_BYTES_MIN:
        raise ValueError(f"must be {_PREFIX} and the base64 of {_SECRET_BYTES_MIN} bytes or more")
    return secret


def _secret(text: SecretStr | None) -> SecretStr | None:
    if text is not None:
        secret_of(text.get_secret_value())
    return text


class WebhookSettings(BaseModel):
    """The receiver of announcements of dead letters and redrives."""

    model_config = ConfigDict(defer_build=True)

    webhook_url: Annotated[str | None, AfterValidator(partial(_address, _URL))] = None
    """Address that gets a signed POST when a dead-letter queue gets its first message, and when a
    redrive waits for someone, stops by itself or fails; by default none."""
    webhook_secret: Annotated[SecretStr | None, AfterValidator(_secret)] = None
    """Key of the signature: whsec_ and the base64 of 24 bytes or more, from HOLDFAST_WEBHOOK_SECRET
    only."""


def wrong_webhook(settings: WebhookSettings) -> str | None:
    """The reason why these settings do not fit together; None if they do."""
    if (settings.webhook_url is None) is (settings.webhook_secret is None):
        return None
    return "webhook_url: needs HOLDFAST_WEBHOOK_SECRET too, and the other way round"


class TraceSettings(BaseModel):
    """The collector of spans."""

    model_config = ConfigDict(defer_build=True)

    otlp_endpoint: Annotated[str | None, AfterValidator(partial(_address, _ENDPOINT))] = None
    """Address of an OpenTelemetry collector (OTLP over HTTP), such as "http://localhost:4318": it
    gets a span from the send to the receive of each message that carries a trace; by default
    none."""
