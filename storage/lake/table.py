"""Lake: a folder or an object store that the service and the jobs share. Files appear whole or not
at all.

`url` is a folder or s3://BUCKET/PREFIX. Access to an object store is configured by HOLDFAST_LAKE_*
or else AWS_* variables, except AWS_ENDPOINT_URL, which names the queue service.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pyarrow.fs as arrow_fs
from pyarrow import ArrowException, NativeFile

from storage.lake.lake_permissions import FILE, OWNER_ONLY, check_path, make_folder, read_umask

CHUNK_BYTES = 8 << 20
_DRAFT = ".draft-"


class LakeUnusable(Exception):
    """The lake cannot be reached or used; the text gives the reason in one line."""


class LakeFile(NamedTuple):
    """A file by its path relative to the lake, with slashes."""

    path: str
    size: int
    modified_s: float

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


LakeFiles = list[LakeFile]


class ObjectStore(NamedTuple):
    """Access to an object store; None means the default of the AWS SDKs. Can be pickled, for
    executors."""

    access_key: str | None = None
    secret_key: str | None = None
    session_token: str | None = None
    region: str | None = None
    endpoint: str | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ObjectStore:
        """Read HOLDFAST_LAKE_ACCESS_KEY_ID, _SECRET_ACCESS_KEY, _SESSION_TOKEN, _REGION,
        _ENDPOINT_URL, else AWS_...

        The AWS variable for the endpoint is AWS_ENDPOINT_URL_S3.
        """
        own = "HOLDFAST_LAKE_"
        prefix = own if own + "ACCESS_KEY_ID" in environment else "AWS_"
        region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
        return cls(
            environment.get(prefix + "ACCESS_KEY_ID"),
            environment.get(prefix + "SECRET_ACCESS_KEY"),
            environment.get(prefix + "SESSION_TOKEN"),
            environment.get(own + "REGION") or region,
            environment.get(own + "ENDPOINT_URL") or environment.get("AWS_ENDPOINT_URL_S3"),
        )


class Lake:
    """Files by their paths relative to the lake. Every method raises LakeUnusable."""

    def __init__(
        self,
        url: str,
        store: ObjectStore = ObjectStore(),  # noqa: B008
        umask: int = read_umask(OWNER_ONLY),
    ) -> None:
        """`umask` is that of files and folders, whatever the process has."""
        self.store = store
        self._umask = umask
        self.is_local = "://" not in url or url.startswith("file://")
        if self.is_local:
            self._root = os.path.abspath(urlsplit(url).path if "://" in url else url)
            try:
                check_path(self._root)
            except ValueError as error:
                raise LakeUnusable(f"lake {url}: {error}") from error
            self.url = self._root
            self._files: arrow_fs.FileSystem = arrow_fs.LocalFileSystem()
            self._synced: set[Path] = set()  # folders that are durable in their parents
            return
        parts = urlsplit(url)
        if parts.scheme not in ("s3", "s3a") or not parts.netloc:
            raise LakeUnusable(f"lake {url}: must be a folder or s3://BUCKET/PREFIX")
        self._root = f"{parts.netloc}{parts.path}".rstrip("/")
        self.url = f"s3://{self._root}"
        with _named(url):
            self._files = _object_store(store)

    def __reduce__(self) -> tuple[type[Lake], tuple[str, ObjectStore, int]]:
        return type(self), (self.url, self.store, self._umask)

    @property
    def files(self) -> arrow_fs.FileSystem:
        """The file system for pyarrow; it takes the results of `path`."""
        return self._files

    def path(self, relative: str) -> str:
        """The path of a file for `files`."""
        return f"{self._root}/{relative}"

    def uri(self, relative: str) -> str:
        """The address of a file or table for deltalake, and for Spark if the lake is local."""
        return f"{self.url}/{relative}"

    def storage_options(self) -> dict[str, str]:
        """Options with which deltalake reaches the lake."""
        if self.is_local:
            return {}
        given = {
            "AWS_ACCESS_KEY_ID": self.store.access_key,
            "AWS_SECRET_ACCESS_KEY": self.store.secret_key,
            "AWS_SESSION_TOKEN": self.store.session_token,
            "AWS_REGION": self.store.region,
            "AWS_ENDPOINT_URL": self.store.endpoint,
        }
        options = {name: value for name, value in given.items() if value}
        if (self.store.endpoint or "").startswith("http://"):
            options["AWS_ALLOW_HTTP"] = "true"
        return options

    def list(self, folder: str) -> LakeFiles:
        """All files below a folder, sorted by path; none if it does not exist. Drafts are left
        out."""
        return [file for file in self._list(folder) if not file.name.startswith(".")]

    def list_drafts(self, folder: str) -> LakeFiles:
        """Unfinished files below a folder, some left by dead writers. An object store has none."""
        if not self.is_local:
            return []
        return [file for file in self._list(folder) if file.name.startswith(_DRAFT)]

    def remove_drafts(self, folder: str) -> None:
        """Remove the unfinished files that killed writers left below a folder with one writer, who
        calls this."""
        for file in self.list_drafts(folder):
            self.remove(file.path)

    def _list(self, folder: str) -> LakeFiles:
        selector = arrow_fs.FileSelector(self.path(folder), allow_not_found=True, recursive=True)
        with _named(self.uri(folder)):
            found = self._files.get_file_info(selector)
        cut = len(self._root) + 1
        return sorted(
            LakeFile(info.path[cut:], info.size or 0, info.mtime.timestamp() if info.mtime else 0.0)
            for info in found
            if info.type is arrow_fs.FileType.File
        )

    @contextmanager
    def open(self, path: str) -> Iterator[NativeFile]:
        """Open a file for random reads."""
        with _named(self.uri(path)), self._files.open_input_file(self.path(path)) as stream:
            yield stream

    def read(self, path: str) -> bytes | None:
        """Read a whole file; None if there is none."""
        with _named(self.uri(path)), suppress(FileNotFoundError):
            if self._files.get_file_info(self.path(path)).type is arrow_fs.FileType.File:
                with self._files.open_input_stream(self.path(path)) as stream:
                    return bytes(stream.read())
        return None

    def read_json(self, path: str) -> object:
        """Read a JSON file; None if there is none."""
        content = self.read(path)
        try:
            return None if content is None else json.loads(content)
        except ValueError as error:
            raise LakeUnusable(f"{self.uri(path)} is damaged: {error}") from error

    def write(self, path: str, content: bytes) -> None:
        """Make or replace a file; durable when it returns."""
        with self.draft(path) as draft:
            draft.write_bytes(content)

    @contextmanager
    def draft(self, path: str) -> Iterator[Path]:
        """A local file to write; it moves to its place, durably, when the block ends without an
        error. Errors of the block itself that are the system's or Arrow's, such as a full disk, are
        raised as LakeUnusable as well."""
        target = Path(self.path(path))
        with _named(self.uri(path)):
            if self.is_local:
                self._make(target.parent)
            folder = target.parent if self.is_local else None
            descriptor, name = tempfile.mkstemp(prefix=_DRAFT, dir=folder)
            if self.is_local:
                os.fchmod(descriptor, FILE & ~self._umask)
            os.close(descriptor)
        draft = Path(name)
        try:
            with _named(self.uri(path)):
                yield draft
                self._put(draft, target)
        finally:
            with suppress(FileNotFoundError):
                draft.unlink()

    def _make(self, folder: Path) -> None:
        """Make a folder of the lake, and those that it is in."""
        if folder.is_dir():
            return
        if folder == Path(self._root):
            folder.parent.mkdir(parents=True, exist_ok=True)
        else:
            self._make(folder.parent)
        make_folder(folder, self._umask)

    def _put(self, draft: Path, target: Path) -> None:
        if not self.is_local:
            self._upload(draft, str(target))
            return
        _sync(draft)
        draft.replace(target)
        for folder in (target.parent, *target.parent.parents):
            _sync(folder)
            if folder == Path(self._root) or target.parent in self._synced:
                break
        self._synced.add(target.parent)

    def _upload(self, draft: Path, target: str) -> None:
        """Upload a file: an aborted stream would still become an object, which must then be
        removed."""
        size, sent, is_cut = draft.stat().st_size, 0, False
        try:
            with draft.open("rb") as source, self._files.open_output_stream(target) as copy:
                try:
                    while chunk := source.read(CHUNK_BYTES):
                        sent += len(chunk)
                        copy.write(chunk)
                except BaseException:
                    is_cut = sent < size
                    raise
        finally:
            if is_cut:
                with suppress(OSError, ArrowException):  # the first error is the one that counts
                    self._files.delete_file(target)

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        with _named(self.uri(path)), suppress(FileNotFoundError):
            self._files.delete_file(self.path(path))

    def remove_folder(self, folder: str) -> None:
        """Remove a folder with everything in it, if it exists."""
        with _named(self.uri(folder)), suppress(FileNotFoundError):
            self._files.delete_dir(self.path(folder))


def _object_store(store: ObjectStore) -> arrow_fs.FileSystem:
    endpoint = urlsplit(store.endpoint or "")
    return arrow_fs.S3FileSystem(
        access_key=store.access_key,
        secret_key=store.secret_key,
        session_token=store.session_token,
        region=store.region,
        endpoint_override=endpoint.netloc or None,
        scheme=endpoint.scheme or "https",
    )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Name the file in question in errors."""
    try:
        yield
    except (OSError, ArrowException) as error:
        text = " ".join(str(error).split())
        raise LakeUnusable(f"{where}: {text}") from error
