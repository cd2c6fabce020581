"""The write-ahead log of one shard: `read_log`, then `open_log`, then `Log`."""

from storage.log.answered import Answered, AnsweredNote, NoteDamaged, read_answered
from storage.log.disk import Disk, SystemDisk
from storage.log.entry import BEGINNING, ENTRY_BYTES_MAX, Entry, Position
from storage.log.log import EntryTooLarge, Log, LogFailed, LogFull
from storage.log.opening import open_log
from storage.log.reading import LogMismatch, Lost, Reading, read_log
from storage.log.segments import SEGMENT_BYTES

__all__ = [
    "BEGINNING",
    "ENTRY_BYTES_MAX",
    "SEGMENT_BYTES",
    "Answered",
    "AnsweredNote",
    "Disk",
    "Entry",
    "EntryTooLarge",
    "Log",
    "LogFailed",
    "LogFull",
    "LogMismatch",
    "Lost",
    "NoteDamaged",
    "Position",
    "Reading",
    "SystemDisk",
    "open_log",
    "read_answered",
    "read_log",
]
