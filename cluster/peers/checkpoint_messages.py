"""Requests of the channel `checkpoints`, and their answers. Pure.

    Begin → Manifest    make a checkpoint of a shard's rows, keep the log behind it
    Read  → bytes       a part of one of its files
    Keep  → Kept        keep the log behind an Entry: asked of the leader too
    Check → Checked     read all its rows there: asked again until that is over
    End   → nothing     the files are not needed any more

A host begins at most one checkpoint of a shard at a time at each other host; another Begin ends the
one before. A host that does not know `Check` refuses it as FAILED.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from storage.log.entry import Position


class Refusal(StrEnum):
    """Reasons of a host that gives no checkpoint."""

    NO_SHARD = "no_shard"
    """The shard is not open there."""
    OLDER = "older"
    """Its rows are of an earlier Entry than is needed."""
    CONFLICT = "conflict"
    """Its rows have Entries that the others lost, and are not those that the others go on from."""
    NOT_MADE = "not_made"
    """Its disk is full or damaged."""
    NO_CHECKPOINT = "no_checkpoint"
    """It is unknown, or was removed."""
    UNREADABLE = "unreadable"
    """A file cannot be read."""
    NOT_CHECKED = "not_checked"
    """The rows could not be read, for another reason than damage."""


class Begin(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Make a checkpoint, and answer its manifest."""

    shard: int
    log_id: bytes
    at_least: int
    """Index of the Entry that the rows must hold."""


class Read(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Give a piece of a file."""

    shard: int
    number: int
    file: int
    """Its place in the manifest."""
    offset: int
    size: int


class Keep(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Keep the log from this Entry on."""

    shard: int
    index: int


class End(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Remove the checkpoint."""

    shard: int
    number: int


class Check(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Check that the checkpoint can be read."""

    shard: int
    number: int


class CheckpointFile(msgspec.Struct, frozen=True, array_like=True):
    """One file of a checkpoint."""

    name: str
    size: int
    crc32: int


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint."""

    number: int
    """By which its files are asked for."""
    log_id: bytes
    position: Position
    """The last Entry that the rows hold, which is committed."""
    files: list[CheckpointFile]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of the log that is kept."""

    start: int
    """Index of the Entry behind which Entries can be sent."""


class Checked(msgspec.Struct, frozen=True, array_like=True):
    """The result of reading all rows of a checkpoint at the host that made it."""

    is_over: bool
    """False while it still reads."""
    damage: str
    """Empty if they are sound."""


Request = Begin | Read | Keep | End | Check

encode = msgspec.msgpack.Encoder().encode
"""A request or an answer as bytes."""
decode_request = msgspec.msgpack.Decoder(Request).decode
"""Raises msgspec.MsgspecError."""
decode_manifest = msgspec.msgpack.Decoder(Manifest).decode
"""Raises msgspec.MsgspecError."""
decode_checked = msgspec.msgpack.Decoder(Checked).decode
"""Raises msgspec.MsgspecError."""
decode_kept = msgspec.msgpack.Decoder(Kept).decode
"""Raises msgspec.MsgspecError."""
