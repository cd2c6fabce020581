"""The note of an open database's live files, kept up to date: with each flush, and soon after each compaction."""

from __future__ import annotations

import threading
from pathlib import Path

import structlog
from rocksdict import Rdict

from storage.engines.live_files import LiveFiles

_LOOK_S = 1.0
"""Interval at which compactions are noticed: until then the copies hold on to files that are obsolete."""


class NotedFiles:
    """Notes from any thread, and from one of its own."""

    def __init__(self, folder: Path, rows: Rdict) -> None:
        self._rows = rows
        self._files = LiveFiles(folder)
        self._log = structlog.get_logger("store").bind(folder=str(folder))
        self._noting = threading.Lock()
        self._stopped = threading.Event()
        self.note()
        self._thread = threading.Thread(target=self._watch, name="live-files", daemon=True)
        self._thread.start()

    def note(self) -> None:
        """Note what is live. A failure costs protection, not rows: the log says so."""
        with self._noting:
            try:
                if not self._files.note(self._rows):
                    self._log.warning("live_files_not_noted", error="they changed meanwhile")
            except (OSError, ValueError) as error:
                self._log.error("live_files_not_noted", error=str(error))

    def _watch(self) -> None:
        while not self._stopped.wait(_LOOK_S):
            if self._files.is_outdated():
                self.note()

    def stop(self) -> None:
        """End the thread: the database is closed next."""
        self._stopped.set()
        self._thread.join()
