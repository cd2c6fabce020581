"""The write-ahead log of one shard: `read_log`, then `open_log`, then `Log`."""

from storage.log.answered import ANSWERED_FILE, Answered, AnsweredNote, NoteDamaged, read_answered
from storage.log.begun import is_begun, note_begun
from storage.log.disk import Disk, SystemDisk
from storage.log.entry import (
    BEGINNING,
    ENTRY_BYTES_MAX,
    NEWEST_FORMAT,
    OLDEST_FORMAT,
    Entry,
    EntryTooLarge,
    NewerFormat,
    Position,
)
from storage.log.log import Diverged, Log, LogFailed, LogFull, NotNext, ReplicaLog
from storage.log.log_opening import open_log, open_replica_log
from storage.log.log_reading import LogMismatch, Lost, Reading, read_log, without_entries
from storage.log.log_segments import SEGMENT_BYTES
from storage.log.promise import Promise, PromiseFile, have_room
from storage.log.read_ahead import ReadAhead

__all__ = [
    "ANSWERED_FILE",
    "BEGINNING",
    "ENTRY_BYTES_MAX",
    "NEWEST_FORMAT",
    "OLDEST_FORMAT",
    "SEGMENT_BYTES",
    "Answered",
    "AnsweredNote",
    "Disk",
    "Diverged",
    "Entry",
    "EntryTooLarge",
    "Log",
    "LogFailed",
    "LogFull",
    "LogMismatch",
    "Lost",
    "NewerFormat",
    "NotNext",
    "NoteDamaged",
    "Position",
    "Promise",
    "PromiseFile",
    "ReadAhead",
    "Reading",
    "ReplicaLog",
    "SystemDisk",
    "have_room",
    "is_begun",
    "note_begun",
    "open_log",
    "open_replica_log",
    "read_answered",
    "read_log",
    "without_entries",
]
