"""The note that a running service keeps in its data folder for local commands: its address and a
key.

    DATA/service.json   written at start, removed at stop; mode 600

Each start makes a new key. It is valid for the pages under /_holdfast/ only, and only from
loopback.
"""

from __future__ import annotations

import os
from base64 import b32encode, urlsafe_b64encode
from contextlib import suppress
from pathlib import Path
from pwd import getpwuid
from urllib.parse import urlsplit

import msgspec

from auth.credentials import AccessKey
from cluster.clock import Entropy
from storage.files.copying import write_file

FILE_NAME = "service.json"
LOGIN_HEADER = "x-holdfast-login"
"""The user of this machine who runs a local command, as that says itself: the key in the note is
for those who may read the data folder."""
LOCAL_PRINCIPAL = "local-command"
_ID_BYTES = 10
_SECRET_BYTES = 30


class NoteUnreadable(Exception):
    """The note cannot be read; the text gives the reason in one line."""


class ServiceNote(msgspec.Struct, frozen=True):
    """`url` serves SQS; `admin_url` serves the administrative pages to local programs."""

    url: str
    admin_url: str
    pid: int
    access_key_id: str
    secret_access_key: str


def local_url(url: str) -> str:
    """The address for programs on this machine: the loopback one if a service listens on all
    addresses."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def login_name() -> str:
    """The name of the user of this machine who runs this process; the number of one without."""
    try:
        return getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def make_local_key(account: str, entropy: Entropy) -> AccessKey:
    """A new key for local commands."""
    return AccessKey(
        "LOCAL" + b32encode(entropy.secret(_ID_BYTES)).decode(),
        urlsafe_b64encode(entropy.secret(_SECRET_BYTES)).decode(),
        account,
        LOCAL_PRINCIPAL,
    )


def write_note(data: Path, url: str, admin_url: str, key: AccessKey) -> None:
    """Write the note, replacing an earlier one. Raises OSError."""
    note = ServiceNote(url, admin_url, os.getpid(), key.access_key_id, key.secret_access_key)
    draft = data / f"{FILE_NAME}.new"
    draft.unlink(missing_ok=True)
    write_file(draft, msgspec.json.encode(note))
    draft.replace(data / FILE_NAME)


def remove_note(data: Path) -> None:
    """Remove the note, if there is one."""
    with suppress(OSError):
        (data / FILE_NAME).unlink()


def read_note(data: Path) -> ServiceNote | None:
    """The note in a folder; None if there is none. Raises NoteUnreadable."""
    file = data / FILE_NAME
    try:
        note = msgspec.json.decode(file.read_bytes(), type=ServiceNote)
        _check_address(note.url)
        _check_address(note.admin_url)
        return note
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise NoteUnreadable(
            f"cannot read {file}: {error.strerror}; run the command as the service's user, or give "
            "it an access key"
        ) from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise NoteUnreadable(f"{file} is damaged: start the service again") from error


def _check_address(url: str) -> None:
    """Raise ValueError unless the address has a scheme, a host and a port, like those of
    `write_note`."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or not parts.port:
        raise ValueError(url)
