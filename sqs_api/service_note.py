"""The note that a running service leaves in its data folder for commands on its machine: where it answers, and a key.

    DATA/service.json   made at start and removed at stop; for its owner alone

The key is another one at each start. It is good for the pages under /_holdfast/ only, and only from this machine.
"""

from __future__ import annotations

import os
from base64 import b32encode, urlsafe_b64encode
from contextlib import suppress
from pathlib import Path

import msgspec

from auth.credentials import AccessKey
from cluster.clock import Entropy
from storage.copies import write_file

FILE_NAME = "service.json"
_PRINCIPAL = "local-command"
_ID_BYTES = 10
_SECRET_BYTES = 30


class NoteUnreadable(Exception):
    """There is a note that cannot be read; the text says why in one line."""


class ServiceNote(msgspec.Struct, frozen=True):
    """`url` is where SQS is answered, `admin_url` where the pages are answered to programs on this machine."""

    url: str
    admin_url: str
    pid: int
    access_key_id: str
    secret_access_key: str


def make_local_key(account: str, entropy: Entropy) -> AccessKey:
    """A new key for commands on this machine."""
    return AccessKey(
        "LOCAL" + b32encode(entropy.secret(_ID_BYTES)).decode(),
        urlsafe_b64encode(entropy.secret(_SECRET_BYTES)).decode(),
        account,
        _PRINCIPAL,
    )


def write_note(data: Path, url: str, admin_url: str, key: AccessKey) -> None:
    """Leave the note, in the place of an earlier one. Raises OSError."""
    note = ServiceNote(url, admin_url, os.getpid(), key.access_key_id, key.secret_access_key)
    draft = data / f"{FILE_NAME}.new"
    draft.unlink(missing_ok=True)
    write_file(draft, msgspec.json.encode(note))
    draft.replace(data / FILE_NAME)


def remove_note(data: Path) -> None:
    """Take the note back."""
    with suppress(OSError):
        (data / FILE_NAME).unlink()


def read_note(data: Path) -> ServiceNote | None:
    """The note of a folder, None if there is none. Raises NoteUnreadable."""
    file = data / FILE_NAME
    try:
        return msgspec.json.decode(file.read_bytes(), type=ServiceNote)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise NoteUnreadable(
            f"cannot read {file}: {error.strerror}; commands without an access key are for the service's user"
        ) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NoteUnreadable(f"{file} is damaged: start the service again") from error
