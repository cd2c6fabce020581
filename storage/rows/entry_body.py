"""The body of an Entry: all changes of one Turn. Opaque to the log (`storage/log/entry.py`).

[stamp_ms, [request_id, ...], ops]      MessagePack; ops as in `row_changes.py`
"""

from __future__ import annotations

import msgspec

from visibility.rows.row_changes import Ops


class EntryBody(msgspec.Struct, frozen=True, array_like=True):
    """One Turn's changes. `stamp_ms` is its time, `request_ids` names the requests that changed
    something; it is empty where a row of the Entry has them with their answers."""

    stamp_ms: int
    request_ids: list[str]
    ops: Ops


encode_body = msgspec.msgpack.Encoder().encode
"""The body as bytes."""
decode_body = msgspec.msgpack.Decoder(EntryBody).decode
"""Bytes back to the body. Raises msgspec.MsgspecError."""
