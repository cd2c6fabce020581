"""A private authority and the certificates of a cluster's hosts, in a folder:

    ca.pem, ca.key                       the authority, kept once it is there
    HOST/ca.pem, peer.pem, peer.key      what one host gets

A renewal keeps a host's key, so it replaces a single file and a running host never sees a
certificate with another's key. Without `peer.key` a host gets a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from storage.files.copying import replace_file

_AUTHORITY_DAYS = 3650
_BEFORE = timedelta(days=1)
"""A host whose clock is behind takes a new certificate all the same."""
_LEFT = timedelta(days=30)
"""An authority that ends sooner signs nothing more."""
_NO_USAGE = {
    "digital_signature": False,
    "content_commitment": False,
    "key_encipherment": False,
    "data_encipherment": False,
    "key_agreement": False,
    "key_cert_sign": False,
    "crl_sign": False,
    "encipher_only": False,
    "decipher_only": False,
}


class CertificatesRefused(Exception):
    """The folder cannot be used; the text says why in one line."""


class HostFiles(NamedTuple):
    """PEM files of one host."""

    authority: Path
    certificate: Path
    key: Path
    expires_at: datetime


class _Authority(NamedTuple):
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make_certificates(
    folder: Path,
    hosts: Iterable[str],
    days: int,
    now_s: float,
    addresses: Mapping[str, str] | None = None,
    mark: str = "",
) -> dict[str, HostFiles]:
    """Make or renew the certificates of these hosts. `addresses` are IP addresses by host, for
    those that are not reached by name; `mark` says of which cluster or role they are, see
    `roles.py`. Raises CertificatesRefused."""
    now = datetime.fromtimestamp(now_s, UTC)
    try:
        authority = _authority(folder, now)
        return {
            host: _host(folder / host, _names(host, addresses or {}, mark), authority, days, now)
            for host in hosts
        }
    except OSError as error:
        raise CertificatesRefused(f"cannot write {error.filename}: {error.strerror}") from error


# -- the authority ---------------------------------------------------------------------------------


def _authority(folder: Path, now: datetime) -> _Authority:
    certificate_file, key_file = folder / "ca.pem", folder / "ca.key"
    if certificate_file.exists() is not key_file.exists():
        there, missing = sorted((certificate_file, key_file), key=Path.exists, reverse=True)
        raise CertificatesRefused(f"{there} is there without {missing}")
    if not key_file.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = _new_authority(now)
        replace_file(key_file, _key_pem(made.key))
        replace_file(certificate_file, _pem(made.certificate))
        return made
    authority = _Authority(_read_certificate(certificate_file), _read_key(key_file))
    if authority.certificate.public_key() != authority.key.public_key():
        raise CertificatesRefused(f"{key_file} is not the key of {certificate_file}")
    if authority.certificate.not_valid_after_utc < now + _LEFT:
        ends = authority.certificate.not_valid_after_utc.date()
        raise CertificatesRefused(f"{certificate_file} ends at {ends}: make another authority")
    return authority


def _new_authority(now: datetime) -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    # A number in the name keeps authorities apart where one follows another.
    name = _name(f"Holdfast hosts {x509.random_serial_number() >> 128:08x}")
    usage = x509.KeyUsage(**{**_NO_USAGE, "key_cert_sign": True, "crl_sign": True})
    builder = _builder(name, name, key, now, now + timedelta(days=_AUTHORITY_DAYS))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    return _Authority(builder.sign(key, hashes.SHA256()), key)


# -- hosts -----------------------------------------------------------------------------------------


def _names(host: str, addresses: Mapping[str, str], mark: str) -> list[x509.GeneralName]:
    address = addresses.get(host)
    by_address = [] if address is None else [x509.IPAddress(ip_address(address))]
    marks = [x509.UniformResourceIdentifier(mark)] if mark else []
    return [x509.DNSName(host), *by_address, *marks]


def _host(
    folder: Path, names: list[x509.GeneralName], authority: _Authority, days: int, now: datetime
) -> HostFiles:
    folder.mkdir(mode=0o700, exist_ok=True)
    expires_at = min(now + timedelta(days=days), authority.certificate.not_valid_after_utc)
    files = HostFiles(folder / "ca.pem", folder / "peer.pem", folder / "peer.key", expires_at)
    if files.key.exists():
        key = _read_key(files.key)
    else:
        key = ec.generate_private_key(ec.SECP256R1())
        replace_file(files.key, _key_pem(key))
    replace_file(files.authority, _pem(authority.certificate))
    replace_file(files.certificate, _pem(_signed(names, key, authority, now, expires_at)))
    return files


def _signed(
    names: list[x509.GeneralName],
    key: ec.EllipticCurvePrivateKey,
    authority: _Authority,
    now: datetime,
    expires_at: datetime,
) -> x509.Certificate:
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    usage = x509.KeyUsage(**{**_NO_USAGE, "digital_signature": True})
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    # A common name has at most 64 characters; the name that counts is the alternative one.
    host = str(names[0].value)
    builder = _builder(_name(host[:64]), authority.certificate.subject, key, now, expires_at)
    builder = builder.add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True
    )
    builder = builder.add_extension(usage, critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    by = x509.SubjectAlternativeName(names)
    builder = builder.add_extension(by, critical=False).add_extension(issuer, critical=False)
    return builder.sign(authority.key, hashes.SHA256())


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime,
    expires_at: datetime,
) -> x509.CertificateBuilder:
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(expires_at)
        .add_extension(identifier, critical=False)
    )


# -- files -----------------------------------------------------------------------------------------


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _read_certificate(file: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except ValueError as error:
        raise CertificatesRefused(f"{file} is no certificate") from error


def _read_key(file: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise CertificatesRefused(f"{file} is no key without a password") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificatesRefused(f"{file} is no key of an elliptic curve")
    return key
