"""Address and signing key of the service, for commands and jobs. The first of these names it:

    --url
    --data, --config       a data folder: the note that its service keeps there
    AWS_ENDPOINT_URL
    the configured folder  HOLDFAST_DATA, else that of HOLDFAST_CONFIG, else ./holdfast-data
    http://127.0.0.1:9324

Requests to a service with a note are signed with the key in the note, all others with the access
key that AWS SDKs find.
"""

from __future__ import annotations

import configparser
import tomllib
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from auth.signing import SigningKey
from sqs_api.settings.service_note import NoteUnreadable, ServiceNote, read_note

DEFAULT_DATA = "holdfast-data"
DEFAULT_URL = "http://127.0.0.1:9324"
DEFAULT_REGION = "us-east-1"
_PORTS = {"http": 80, "https": 443}

FindKey = Callable[[], SigningKey | None]


class PlaceUnknown(Exception):
    """The service cannot be found; the text gives the reason in one line."""


class Place(NamedTuple):
    """A service.

    `url` serves SQS, `admin_url` the administrative pages; `find_key` returns the signing key.
    """

    url: str
    admin_url: str
    find_key: FindKey
    named_by: str
    """The source of the address, for messages."""
    authorities: str | None = None
    """File of certificate authorities for https; None for those of the system."""


def find_place(
    url: str | None,
    data: Path | None,
    environment: Mapping[str, str],
    sdk_key: FindKey,
) -> Place:
    """Find the service; `url` and `data` are the options. Raises PlaceUnknown."""
    folder = data or configured_folder(environment)
    try:
        note = read_note(folder)
    except NoteUnreadable as error:
        if data is not None and url is None:
            raise PlaceUnknown(str(error)) from error
        note = None
    named_by = "--url"
    if url is None and data is not None and note is None:
        raise PlaceUnknown(f"no service runs on {data}: name another with --url")
    if url is None and data is None and environment.get("AWS_ENDPOINT_URL"):
        url, named_by = environment["AWS_ENDPOINT_URL"], "AWS_ENDPOINT_URL"
    if url is None:
        if note is not None:
            return _noted(note, folder)
        url, named_by = (
            DEFAULT_URL,
            f"no service is noted in {folder}: name one with --url or --data",
        )
    url = checked_url(url)
    if note is not None and _is_noted(url, note):
        return _noted(note, folder)
    return Place(url, url, sdk_key, named_by, environment.get("AWS_CA_BUNDLE") or None)


def checked_url(url: str) -> str:
    """The address without a trailing slash. Raises PlaceUnknown if it is not valid."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise PlaceUnknown(f"{url} is no http:// or https:// address")
    return url.rstrip("/")


def configured_folder(environment: Mapping[str, str]) -> Path:
    """The data folder named by the environment or the configuration file."""
    if named := environment.get("HOLDFAST_DATA"):
        return Path(named)
    if file := environment.get("HOLDFAST_CONFIG"):
        try:
            return Path(str(tomllib.loads(Path(file).read_text()).get("data", DEFAULT_DATA)))
        except (OSError, ValueError) as error:
            raise PlaceUnknown(f"cannot read {file}: {error}") from error
    return Path(DEFAULT_DATA)


def _noted(note: ServiceNote, folder: Path) -> Place:
    key = SigningKey(note.access_key_id, note.secret_access_key, DEFAULT_REGION)
    named_by = (
        f"noted in {folder} by process {note.pid}; if that was killed, "
        "start it again or name another service with --url"
    )
    return Place(note.url, note.admin_url, lambda: key, named_by)


def _is_noted(url: str, note: ServiceNote) -> bool:
    """True if a local user who writes this address means the service of the note."""
    asked, noted = urlsplit(url), urlsplit(note.url)
    host = asked.hostname or ""
    return _port(url) == _port(note.url) and (is_loopback(host) or host == noted.hostname)


def _port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or _PORTS[parts.scheme]


def is_loopback(host: str) -> bool:
    """True for an address, or the name, of this machine alone."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def key_of_environment(environment: Mapping[str, str]) -> SigningKey | None:
    """The access key in the environment, else in the shared credentials file; None if there is
    none."""
    region = (
        environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or DEFAULT_REGION
    )
    found: Mapping[str, str] = {name.lower(): value for name, value in environment.items()}
    if "aws_access_key_id" not in found:
        home = Path(environment.get("HOME", "/"))
        file = environment.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials"
        profiles = configparser.ConfigParser(interpolation=None)
        try:
            profiles.read(file)
        except (configparser.Error, UnicodeDecodeError) as error:
            raise PlaceUnknown(f"cannot read {file}: {' '.join(str(error).split())}") from error
        profile = environment.get("AWS_PROFILE", "default")
        if profile not in profiles:
            return None
        found = profiles[profile]
    access_key_id, secret = found.get("aws_access_key_id"), found.get("aws_secret_access_key")
    if not access_key_id or not secret:
        return None
    return SigningKey(access_key_id, secret, region, found.get("aws_session_token") or None)
