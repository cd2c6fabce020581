"""A model of etcd for the simulator: records, leases, watches and elections in virtual time.

It speaks the gateway's JSON, so the real client runs on it: 64-bit numbers are texts, and fields
that are zero, false or empty are left out. `simulated_wire.py` is the network before it.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

Fields = dict[str, Any]
Push = Callable[[Fields], None]

NO_LEADER = {"code": 14, "message": "etcdserver: no leader"}
ELECTION_S = 1.0
SWEEP_S = 0.5
"""Leases that ended are removed within this time."""
_NEWS_S = 0.3
"""A member hears of an election within this time."""
_OPERATIONS_MAX = 128


class Refusal(Exception):
    """An error that etcd answers with."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.fields: Fields = {"code": code, "message": f"etcdserver: {message}"}


class _Record(NamedTuple):
    value: bytes
    revision: int
    lease: int


class _Lease:
    def __init__(self, ttl_s: int, timer: asyncio.TimerHandle) -> None:
        self.ttl_s = ttl_s
        self.timer = timer


class _Watcher(NamedTuple):
    begin: bytes
    end: bytes
    member: int
    push: Push


class SimulatedEtcd:
    """One etcd for all hosts of a simulation."""

    def __init__(self, random: Random, members: int = 3) -> None:
        self.endpoints = tuple(f"http://member-{number}" for number in range(members))
        self.revision = 1
        self.compacted = 0
        self.has_leader = True
        """Without one, nothing is answered but refusals."""
        self.ttl_min_s = 1
        """The shortest lease; a slow election makes it longer than a host asked for."""
        self.watches_begun = 0
        self._random = random
        self._cluster_id = random.getrandbits(64)
        self._terms = [2] * members
        """The raft term as each member knows it."""
        self._records: dict[bytes, _Record] = {}
        self._history: list[tuple[int, list[Fields]]] = []
        self._leases: dict[int, _Lease] = {}
        self._watchers: list[_Watcher] = []
        self._changed: list[Fields] = []
        """Events of the request that is carried out."""

    # -- faults ------------------------------------------------------------------------------------

    def lose_leader(self, for_s: float = ELECTION_S) -> None:
        """The leader is gone; another is elected after a while. Longer: no majority is there."""
        assert self.has_leader
        self.has_leader = False
        for watcher in self._watchers:
            watcher.push({"error": NO_LEADER})
        self._watchers.clear()
        asyncio.get_running_loop().call_later(for_s, self._elect)

    def _elect(self) -> None:
        """A new leader gives every lease its full time again."""
        self.has_leader = True
        term = max(self._terms) + 1
        loop = asyncio.get_running_loop()
        for member in range(len(self._terms)):
            delay_s = self._random.uniform(0, _NEWS_S) if member else 0.0
            loop.call_later(delay_s, self._learn, member, term)
        for lease_id, lease in self._leases.items():
            self._renew(lease_id, lease)

    def _learn(self, member: int, term: int) -> None:
        self._terms[member] = max(term, self._terms[member])

    def compact(self) -> None:
        """Forget all changes but the last state of each record."""
        self.compacted = self.revision
        self._history.clear()

    def copy(self) -> tuple[dict[bytes, _Record], int, int]:
        """The state that a copy of the data has."""
        return dict(self._records), self.revision, self._cluster_id

    def restore(self, copy: tuple[dict[bytes, _Record], int, int]) -> None:
        """Go back to a copy. Under the same token it has the same id, and terms begin anew."""
        self.replace()
        self._records, self.revision, self._cluster_id = copy
        self.compacted = self.revision

    def replace(self) -> None:
        """Another etcd, without records, has the same addresses."""
        for lease in self._leases.values():
            lease.timer.cancel()
        for watcher in self._watchers:
            watcher.push({"error": {"code": 14, "message": "etcdserver: server stopped"}})
        etcd = SimulatedEtcd(self._random, len(self.endpoints))
        etcd.endpoints = self.endpoints
        self.__dict__ = etcd.__dict__

    # -- requests ----------------------------------------------------------------------------------

    def answer(self, member: int, path: str, body: bytes) -> Fields:
        """Carry out a request. Raises Refusal."""
        if not self.has_leader:
            raise Refusal(14, "no leader")
        given = json.loads(body)
        answers: dict[str, Callable[[Fields], Fields]] = {
            "/v3/kv/range": self._range,
            "/v3/kv/put": lambda put: self._written([("put", put)]),
            "/v3/kv/txn": self._txn,
            "/v3/lease/grant": self._grant,
            "/v3/lease/keepalive": self._keepalive,
            "/v3/lease/revoke": self._revoke,
        }
        fields = answers[path](given)
        return fields | {"header": self.header(member)}

    def header(self, member: int) -> Fields:
        """Of an answer by this member now."""
        return {
            "cluster_id": self._cluster_id,
            "member_id": member + 1,
            "revision": self.revision,
            "raft_term": self._terms[member],
        }

    def _range(self, given: Fields) -> Fields:
        revision = int(given.get("revision", 0))
        if revision and revision < self.compacted:
            raise Refusal(11, "mvcc: required revision has been compacted")
        begin = b64decode(given["key"])
        end = b64decode(given.get("range_end", "")) or begin + b"\0"
        found = self._state_at(revision) if revision else self._records
        keys = sorted(key for key in found if begin <= key < end)
        limit = given.get("limit", 0) or len(keys)
        kvs = [_kv(key, found[key]) for key in keys[:limit]]
        return {"kvs": kvs, "more": len(keys) > limit, "count": len(keys)}

    def _state_at(self, revision: int) -> dict[bytes, _Record]:
        """Records as of an earlier revision, from what came before a page."""
        found = dict(self._records)
        for at, events in reversed(self._history):
            if at > revision:
                for event in events:
                    found.pop(event["key"], None)
                    if event["before"] is not None:
                        found[event["key"]] = event["before"]
        return found

    def _txn(self, given: Fields) -> Fields:
        parts = [given.get(part, []) for part in ("compare", "success", "failure")]
        if max(map(len, parts)) > _OPERATIONS_MAX:
            raise Refusal(3, "too many operations in txn request")
        succeeded = all(self._holds(each) for each in parts[0])
        steps = [next(iter(step.items())) for step in parts[1 if succeeded else 2]]
        operations = [(name.removeprefix("request_"), fields) for name, fields in steps]
        return self._written(operations) | {"succeeded": succeeded}

    def _holds(self, compare: Fields) -> bool:
        assert compare["target"] == "MOD"
        record = self._records.get(b64decode(compare["key"]))
        return (record.revision if record else 0) == int(compare.get("mod_revision", 0))

    def _written(self, operations: list[tuple[str, Fields]]) -> Fields:
        """Carry out the operations of one request, under one revision if any changes something."""
        leases = [int(fields.get("lease", 0)) for name, fields in operations if name == "put"]
        if any(lease and lease not in self._leases for lease in leases):
            raise Refusal(5, "requested lease not found")
        revision, responses = self.revision + 1, []
        for name, fields in operations:
            if name == "range":
                responses.append({"response_range": self._range(fields)})
            elif name == "put":
                value, lease = b64decode(fields["value"]), int(fields.get("lease", 0))
                self._set(b64decode(fields["key"]), _Record(value, revision, lease))
                responses.append({"response_put": {}})
            else:
                self._set(b64decode(fields["key"]), None)
                responses.append({"response_delete_range": {}})
        self._report()
        return {"responses": responses}

    def _set(self, key: bytes, record: _Record | None) -> None:
        before = self._records.get(key)
        if record is None:
            if before is None:
                return
            del self._records[key]
        else:
            self._records[key] = record
        self._changed.append({"key": key, "before": before, "now": record})

    # -- watches -----------------------------------------------------------------------------------

    def watch(self, member: int, body: bytes, push: Push) -> Callable[[], None]:
        """Push lines from now on. Returns what ends the watch."""
        wanted = json.loads(body)["create_request"]
        self.watches_begun += 1
        if not self.has_leader:
            push({"error": NO_LEADER})
            return lambda: None
        watcher = _Watcher(b64decode(wanted["key"]), b64decode(wanted["range_end"]), member, push)
        push({"result": {"header": self.header(member), "created": True}})
        start = int(wanted["start_revision"])
        if start <= self.compacted:
            # The stream stays open.
            canceled = {"canceled": True, "compact_revision": self.compacted}
            push({"result": {"header": self.header(member)} | canceled})
            return lambda: None
        for revision, events in self._history:
            if revision >= start:
                self._push(watcher, revision, events)
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher) if watcher in self._watchers else None

    def _report(self) -> None:
        events, self._changed = self._changed, []
        if not events:
            return
        self.revision += 1
        self._history.append((self.revision, events))
        for watcher in self._watchers:
            self._push(watcher, self.revision, events)

    def _push(self, watcher: _Watcher, revision: int, events: list[Fields]) -> None:
        seen = [
            _event(each, revision) for each in events if watcher.begin <= each["key"] < watcher.end
        ]
        if seen:
            watcher.push({"result": {"header": self.header(watcher.member), "events": seen}})

    # -- leases ------------------------------------------------------------------------------------

    def _grant(self, given: Fields) -> Fields:
        lease_id, ttl_s = int(given["ID"]), max(int(given["TTL"]), self.ttl_min_s)
        if lease_id in self._leases:
            raise Refusal(6, "lease already exists")
        self._leases[lease_id] = _Lease(ttl_s, self._timer(lease_id, ttl_s))
        return {"ID": lease_id, "TTL": ttl_s}

    def _timer(self, lease_id: int, ttl_s: int) -> asyncio.TimerHandle:
        after_s = ttl_s + self._random.uniform(0, SWEEP_S)
        return asyncio.get_running_loop().call_later(after_s, self._expire, lease_id)

    def _renew(self, lease_id: int, lease: _Lease) -> None:
        lease.timer.cancel()
        lease.timer = self._timer(lease_id, lease.ttl_s)

    def _expire(self, lease_id: int) -> None:
        """Only a leader removes leases; the next one begins their time anew."""
        if self.has_leader:
            self._remove_lease(lease_id)

    def _remove_lease(self, lease_id: int) -> None:
        lease = self._leases.pop(lease_id)
        lease.timer.cancel()
        for key in [key for key, record in self._records.items() if record.lease == lease_id]:
            self._set(key, None)
        self._report()

    def _keepalive(self, given: Fields) -> Fields:
        lease_id = int(given["ID"])
        lease = self._leases.get(lease_id)
        if lease is None:
            return {"result": {"header": self.header(0), "ID": lease_id}}
        self._renew(lease_id, lease)
        return {"result": {"header": self.header(0), "ID": lease_id, "TTL": lease.ttl_s}}

    def _revoke(self, given: Fields) -> Fields:
        if int(given["ID"]) not in self._leases:
            raise Refusal(5, "requested lease not found")
        self._remove_lease(int(given["ID"]))
        return {}


def _kv(key: bytes, record: _Record) -> Fields:
    value = b64encode(record.value).decode()
    return {"key": b64encode(key).decode(), "value": value, "mod_revision": record.revision}


def _event(event: Fields, revision: int) -> Fields:
    if event["now"] is None:
        key = b64encode(event["key"]).decode()
        return {"type": "DELETE", "kv": {"key": key, "mod_revision": revision}}
    return {"kv": _kv(event["key"], event["now"])}


def to_json(fields: Fields) -> bytes:
    """As the gateway writes it."""
    return json.dumps(_as_sent(fields)).encode()


def _as_sent(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: part if key == "code" else _as_sent(part) for key, part in value.items() if part
        }
    if isinstance(value, list):
        return [_as_sent(part) for part in value]
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value
