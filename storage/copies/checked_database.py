"""A SQLite database with a checksum over its content, which detects one flipped bit.

SQLite's own check finds broken structure, not changed values. So each database has one more table:

    checksum(state)     changes counted, sum over all rows, digest of the schema, and a seal

Triggers of the connection (nothing is stored for them) keep it up to date within each transaction,
and write the same rows into the second copy (`second_copy.py`), which is another database:

    copied_schema(sql)                  the statements that made the first one's tables
    copied_rows(place, row, content)    every row of every table, by its rowid
    copied_checksum(state)              the same state
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from storage.files.refusing_disk import is_no_damage

_CHECKSUM_SCHEMA = "CREATE TABLE checksum (state BLOB NOT NULL)"
_COPY_SCHEMA = (
    "CREATE TABLE copied_schema (sql TEXT NOT NULL)",
    "CREATE TABLE copied_rows (place TEXT NOT NULL, row INTEGER NOT NULL, content BLOB NOT NULL, "
    "PRIMARY KEY (place, row))",
    "CREATE TABLE copied_checksum (state BLOB NOT NULL)",
)
_DIGEST_BYTES = 16
_SUMS = 1 << (8 * _DIGEST_BYTES)


class DatabaseDamaged(Exception):
    """The database is damaged; the text gives the reason in one line."""


class State(NamedTuple):
    """The content of a database in one value. Equal states mean equal content."""

    changes: int
    """Rows that were ever changed: of two copies, the one with more is the later."""
    total: int
    """Sum over the digests of all rows, so that a change costs only the rows it changes."""
    schema: bytes

    def encode(self) -> bytes:
        """The state in its stored form, sealed with its own checksum."""
        plain = self.changes.to_bytes(8, "big") + self.total.to_bytes(_DIGEST_BYTES, "big")
        return plain + self.schema + _digest(plain + self.schema)


def _decode_state(stored: object) -> State:
    """The state in its stored form. Raises DatabaseDamaged."""
    if isinstance(stored, bytes) and len(stored) == 8 + 3 * _DIGEST_BYTES:
        plain, seal = stored[:-_DIGEST_BYTES], stored[-_DIGEST_BYTES:]
        if _digest(plain) == seal:
            end = 8 + _DIGEST_BYTES
            total = int.from_bytes(plain[8:end], "big")
            return State(int.from_bytes(plain[:8], "big"), total, plain[end:])
    raise DatabaseDamaged("its checksum is damaged")


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=_DIGEST_BYTES).digest()


def _row_content(*values: Any) -> bytes:
    """The values of a row as bytes: an SQL function of the triggers."""
    return msgspec.msgpack.encode(values)


def _changed_state(stored: bytes, sign: int, place: str, row: int, *values: Any) -> bytes:
    """The stored state after a row was inserted (`sign` 1) or deleted (-1): an SQL function of the
    triggers."""
    state = _decode_state(stored)
    total = (state.total + sign * _row_digest(place, row, _row_content(*values))) % _SUMS
    return State(state.changes + 1, total, state.schema).encode()


def _row_digest(place: str, row: int, content: bytes) -> int:
    named = _row_content(place, row) + content
    return int.from_bytes(_digest(named), "big")


# -- reading ---------------------------------------------------------------------------------------


def open_unchanged(file: Path) -> sqlite3.Connection:
    """Open a database for reading. Without a log beside it, it is not in use: then SQLite makes no
    files there. Raises sqlite3.Error."""
    log = file.with_name(file.name + "-wal")
    mode = "mode=ro" if log.exists() else "mode=ro&immutable=1"
    return sqlite3.connect(f"{file.absolute().as_uri()}?{mode}", uri=True)


@contextmanager
def one_moment(database: sqlite3.Connection) -> Iterator[None]:
    """Make all reads in this context see the database at one moment. Raises sqlite3.Error."""
    if database.in_transaction:
        yield
        return
    database.execute("BEGIN")
    try:
        yield
    finally:
        database.execute("ROLLBACK")


def _schema_of(database: sqlite3.Connection) -> list[str]:
    """The statements that made the tables and indexes, without the checksum's."""
    rows = database.execute(
        "SELECT sql FROM main.sqlite_master WHERE sql IS NOT NULL AND name <> 'checksum' "
        "AND name NOT LIKE 'sqlite_%' ORDER BY name"
    )
    return [sql for (sql,) in rows]


def _tables_of(database: sqlite3.Connection) -> dict[str, list[str]]:
    """Tables with their columns, without the checksum's."""
    names = database.execute(
        "SELECT name FROM main.sqlite_master WHERE type = 'table' AND name <> 'checksum' "
        "AND name NOT LIKE 'sqlite_%' ORDER BY name"
    ).fetchall()
    return {
        name: [column for _, column, *_ in database.execute(f"PRAGMA main.table_info({name})")]
        for (name,) in names
    }


def _rows_of(database: sqlite3.Connection) -> Iterator[tuple[str, int, bytes]]:
    """Every row as (table, rowid, content)."""
    for name, columns in _tables_of(database).items():
        for row, *values in database.execute(
            f"SELECT rowid, {', '.join(columns)} FROM main.{name}"
        ):
            yield name, row, _row_content(*values)


def _computed_state(database: sqlite3.Connection, changes: int) -> State:
    """The state computed from the database's content."""
    return _state(_rows_of(database), _schema_of(database), changes)


def _state(rows: Iterator[tuple[str, int, bytes]], schema: list[str], changes: int) -> State:
    total = sum(_row_digest(*row) for row in rows) % _SUMS
    return State(changes, total, _digest(_row_content(*schema)))


def has_checksum(database: sqlite3.Connection) -> bool:
    """False for a database of version 0.1, and for an empty one."""
    query = "SELECT count(*) FROM main.sqlite_master WHERE name = 'checksum'"
    return bool(database.execute(query).fetchone()[0])


def check_database(database: sqlite3.Connection) -> State | None:
    """The state of a sound database, None if it has no checksum. Raises DatabaseDamaged."""
    with _damage(), one_moment(database):
        _check_structure(database)
        if not has_checksum(database):
            return None
        state = _decode_state(_only(database, "SELECT state FROM main.checksum"))
        if _computed_state(database, state.changes) != state:
            raise DatabaseDamaged("its content does not match its checksum")
        return state


def check_copy(database: sqlite3.Connection) -> State:
    """The state of a sound second copy. Raises DatabaseDamaged."""
    with _damage(), one_moment(database):
        _check_structure(database)
        state = _decode_state(_only(database, "SELECT state FROM main.copied_checksum"))
        rows = database.execute("SELECT place, row, content FROM main.copied_rows")
        if _state(rows, _copied_schema(database), state.changes) != state:
            raise DatabaseDamaged("its content does not match its checksum")
        return state


def _copied_schema(copy: sqlite3.Connection) -> list[str]:
    """The statements that made the original's tables."""
    return [sql for (sql,) in copy.execute("SELECT sql FROM main.copied_schema ORDER BY rowid")]


def _check_structure(database: sqlite3.Connection) -> None:
    found = _only(database, "PRAGMA main.integrity_check(1)")
    if found != "ok":
        raise DatabaseDamaged(" ".join(str(found).split()))


def _only(database: sqlite3.Connection, query: str) -> object:
    rows = database.execute(query).fetchall()
    if len(rows) != 1:
        raise DatabaseDamaged("its checksum is missing")
    return rows[0][0]


@contextmanager
def _damage() -> Iterator[None]:
    """Raise DatabaseDamaged for errors caused by damage; others, such as locks, pass unchanged."""
    try:
        yield
    except (TypeError, ValueError, OverflowError) as error:  # from values of a wrong type
        raise DatabaseDamaged(f"it cannot be read: {error}") from error
    except sqlite3.Error as error:
        if is_no_damage(error):
            raise
        raise DatabaseDamaged(str(error)) from error


# -- writing ---------------------------------------------------------------------------------------


def noted_state(database: sqlite3.Connection) -> State:
    """The state that a database with a checksum has noted. Raises DatabaseDamaged."""
    return _decode_state(_only(database, "SELECT state FROM main.checksum"))


def renew_checksum(database: sqlite3.Connection) -> State:
    """Make or mend the checksum of a database whose tables may have changed; returns the state."""
    if not has_checksum(database):
        return _add_checksum(database, _computed_state(database, 1))
    noted = noted_state(database)
    now = _computed_state(database, noted.changes)
    if now != noted:
        now = now._replace(changes=now.changes + 1)
        database.execute("UPDATE checksum SET state = ?", (now.encode(),))
    return now


def _add_checksum(database: sqlite3.Connection, state: State) -> State:
    database.execute(_CHECKSUM_SCHEMA)
    database.execute("INSERT INTO checksum VALUES (?)", (state.encode(),))
    return state


def fill_copy(copy: sqlite3.Connection, database: sqlite3.Connection, state: State) -> None:
    """Write a database's tables, rows and state into its empty second copy."""
    for statement in _COPY_SCHEMA:
        copy.execute(statement)
    copy.executemany("INSERT INTO copied_schema VALUES (?)", [(s,) for s in _schema_of(database)])
    copy.executemany("INSERT INTO copied_rows VALUES (?,?,?)", _rows_of(database))
    copy.execute("INSERT INTO copied_checksum VALUES (?)", (state.encode(),))


def fill_from_copy(database: sqlite3.Connection, copy: sqlite3.Connection) -> None:
    """Write the tables, rows and state of a sound second copy into an empty database."""
    for statement in _copied_schema(copy):
        database.execute(statement)
    columns = _tables_of(database)
    for place, row, content in copy.execute("SELECT place, row, content FROM copied_rows"):
        values = msgspec.msgpack.decode(content)
        marks = ", ".join("?" * (len(values) + 1))
        names = ", ".join(["rowid", *columns[place]])
        database.execute(f"INSERT INTO {place} ({names}) VALUES ({marks})", (row, *values))
    _add_checksum(database, _decode_state(_only(copy, "SELECT state FROM copied_checksum")))


# -- triggers --------------------------------------------------------------------------------------


def attach_copy(database: sqlite3.Connection, copy: Path) -> None:
    """Let each transaction write the checksum and the second copy, too."""
    database.execute("ATTACH ? AS second", (str(copy),))
    database.execute("PRAGMA second.journal_mode = WAL")
    database.execute("PRAGMA second.synchronous = FULL")
    # Else REPLACE hides removed rows from triggers.
    database.execute("PRAGMA recursive_triggers = ON")
    database.create_function("row_content", -1, _row_content, deterministic=True)
    database.create_function("changed_state", -1, _changed_state, deterministic=True)
    for name, columns in _tables_of(database).items():
        came = _step(name, columns, "new", 1)
        went = _step(name, columns, "old", -1)
        for event, steps in (("INSERT", came), ("DELETE", went), ("UPDATE", went + came)):
            database.execute(
                f"CREATE TEMP TRIGGER {name}_{event.lower()} AFTER {event} ON main.{name} "
                f"BEGIN {steps} END"
            )


def mend_attached_copy(database: sqlite3.Connection) -> None:
    """Bring the second copy up to the database if it lacks a transaction: the two do not commit as
    one, and a disk that is just full may refuse the copy's part. Writes only differences.

    Raises sqlite3.Error: then triggers would make the copy useless with the next change.
    """
    if not any(name == "second" for _, name, _ in database.execute("PRAGMA database_list")):
        return
    database.execute("BEGIN IMMEDIATE")
    with database:
        query = "SELECT a.state <> b.state FROM main.checksum a, second.copied_checksum b"
        if _only(database, query) == 0:
            return
        for name, columns in _tables_of(database).items():
            content = f"row_content({', '.join(f'rows.{column}' for column in columns)})"
            database.execute(
                "DELETE FROM second.copied_rows WHERE place = ? AND row NOT IN "
                f"(SELECT rowid FROM main.{name})",
                (name,),
            )
            database.execute(
                "INSERT OR REPLACE INTO second.copied_rows "
                f"SELECT ?, rows.rowid, {content} FROM main.{name} rows "
                "LEFT JOIN second.copied_rows copied "
                f"ON copied.place = ? AND copied.row = rows.rowid "
                f"WHERE copied.content IS NOT {content}",
                (name, name),
            )
        database.execute(
            "UPDATE second.copied_checksum SET state = (SELECT state FROM main.checksum)"
        )


def _step(name: str, columns: list[str], row: str, sign: int) -> str:
    """The statements for an inserted or deleted row."""
    values = ", ".join(f"{row}.{column}" for column in columns)
    copied = (
        f"INSERT OR REPLACE INTO copied_rows VALUES ('{name}', {row}.rowid, row_content({values}));"
        if sign > 0
        else f"DELETE FROM copied_rows WHERE place = '{name}' AND row = {row}.rowid;"
    )
    sums = "".join(
        f"UPDATE {table} SET state = changed_state(state, {sign}, '{name}', {row}.rowid, {values});"
        for table in ("checksum", "copied_checksum")
    )
    return copied + sums
