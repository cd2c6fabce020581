"""Front: the listener and all that belongs to it, made from the settings."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from sqs_api.config import Settings
from sqs_api.descriptors import for_connections, raise_limit
from sqs_api.gateway import Gateway
from sqs_api.http_server import OtherPages, SqsServer
from sqs_api.listener import Listener
from sqs_api.listener_metrics import ListenerMetrics
from sqs_api.metrics import Metrics
from sqs_api.origins import AllowedOrigins
from sqs_api.proxies import TrustedProxies
from sqs_api.shedding import ListenerLimits
from sqs_api.tls import Tls, TlsUnusable

FRONT_CHECK_S = 1.0
"""How often connections and certificates are looked at; the unit of the listener's time limits."""


class Front:
    """What clients connect to. Belongs to the event loop's thread."""

    def __init__(self, settings: Settings, wall_s: Callable[[], float]) -> None:
        """Raises TlsUnusable."""
        self._settings = settings
        self._wall_s = wall_s
        self._tls: Tls | None = None
        if settings.tls_certificate is not None and settings.tls_key is not None:
            self._tls = Tls(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
        self._log = structlog.get_logger("front")

    async def open(self, gateway: Gateway, pages: OtherPages, metrics: Metrics) -> str:
        """Listen. Returns the address. Raises OSError."""
        settings, tls = self._settings, self._tls
        limits = ListenerLimits(
            connections_max=for_connections(settings.connections_max, raise_limit()),
            request_timeout_s=settings.request_timeout_s,
            idle_timeout_s=settings.idle_timeout_s,
            client_bytes_per_s_min=settings.client_bytes_per_s_min,
            request_memory_bytes=settings.request_memory_bytes,
        )
        if limits.connections_max < settings.connections_max:
            self._log.warning("few_file_descriptors", connections_max=limits.connections_max)
        proxies = TrustedProxies(settings.trusted_proxies)
        origins = AllowedOrigins(settings.browser_origins)
        self._server = SqsServer(gateway, pages, limits, proxies, origins)
        self._listener = Listener(self._server, connections_max=limits.connections_max, tls=tls)
        port = await self._listener.open(settings.host, settings.port)
        counters, memory = self._server.counters, self._server.memory
        metrics.attach(
            ListenerMetrics(
                counters, memory, tls, lambda: gateway.polls_not_waited, wall_s=self._wall_s
            )
        )
        self._report_expiry()
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        return f"{'http' if tls is None else 'https'}://{host}:{port}"

    async def look(self) -> None:
        """Hang up on clients that let the service wait, and take over a new certificate. Call it every `FRONT_CHECK_S`."""
        await self._server.sweep()
        try:
            if self._tls is not None and self._tls.reload_if_changed():
                self._log.info("certificate_reloaded")
        except TlsUnusable as error:
            self._log.error("certificate_not_reloaded", error=str(error))
        self._report_expiry()

    def _report_expiry(self) -> None:
        """Clients refuse an expired certificate; this side is the only one that can say so in time."""
        tls = self._tls
        if tls is not None and tls.expires_now(self._wall_s()):
            expired = datetime.fromtimestamp(tls.expires_at_s, UTC).isoformat()
            file = str(self._settings.tls_certificate)
            self._log.error("certificate_expired", file=file, expired=expired)

    def close(self) -> None:
        """Accept no more, and begin no more requests."""
        self._listener.close()
        self._server.begin_to_stop()

    async def disconnect(self, wait_s: float) -> None:
        """End the connections, the idle ones after so long."""
        await self._server.shutdown(wait_s)
