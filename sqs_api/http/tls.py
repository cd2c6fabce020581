"""TLS of the listener: certificate and key from PEM files, which are reloaded when they change.

A context is never changed once it is used: new files make a new one for later handshakes. So open
connections keep the parameters they agreed on, and a session of the old context cannot bypass a new
authority for client certificates.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from cryptography import x509

from sqs_api.http.handshakes import ServerContext
from storage.files.copying import file_mark

_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""TLS 1.2 with forward secrecy and AEAD only; those of TLS 1.3 are all so."""


class TlsUnusable(Exception):
    """The files cannot be used; the text says why in one line."""


class Tls:
    """The context for new connections."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None) -> None:
        """`client_ca`: authorities one of which must have signed each client's certificate.

        Raises TlsUnusable.
        """
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._seen = self._looks()
        self.is_stale = False
        """True while the files on disk cannot be used and an older certificate is."""
        self._load()

    def reload_if_changed(self) -> bool:
        """Take over changed files; True if there were any. Raises TlsUnusable, once for each
        change."""
        looks = self._looks()
        if looks == self._seen:
            return False
        self._seen = looks
        self.is_stale = True
        self._load()
        self.is_stale = False
        return True

    def _load(self) -> None:
        expires_at_s = _expiry(self._certificate)
        self.context = _context(self._certificate, self._key, self._client_ca)
        self.expires_at_s = expires_at_s
        """When the certificate in use expires, in seconds since 1970."""
        self._expiry_seen = False

    def expires_now(self, now_s: float) -> bool:
        """True, once for each certificate, when the one in use has expired."""
        if self._expiry_seen or now_s < self.expires_at_s:
            return False
        self._expiry_seen = True
        return True

    def _looks(self) -> list[tuple[int, int, int] | None]:
        return [file_mark(file) for file in (self._certificate, self._key, self._client_ca) if file]


def _context(certificate: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    try:
        # Without a password function, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise TlsUnusable(
            f"cannot use certificate {certificate} with key {key}: {_reason(error)}"
        ) from error
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except (OSError, ValueError) as error:
            raise TlsUnusable(f"cannot use client CA {client_ca}: {_reason(error)}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _expiry(certificate: Path) -> float:
    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
    except OSError as error:
        raise TlsUnusable(f"cannot read {certificate}: {_reason(error)}") from error
    except ValueError as error:
        raise TlsUnusable(f"{certificate} holds no PEM certificate") from error
    return found.not_valid_after_utc.timestamp()


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        known = {"KEY_VALUES_MISMATCH": "they do not belong together"}
        reason = error.reason or "not in PEM form, or encrypted"
        return known.get(reason, reason.lower().replace("_", " "))
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
