"""Sessions: browsers that are signed in, and the challenges that they answered.

sessions/HASH      a session, by the SHA-256 of its token. The token itself is in the browser only
challenges/ID      the time until which an answered challenge must be refused

A session is what an access key, or a user's rights, were when it began. Each look compares them
with the records of now, so it ends everywhere at once when the key is disabled, removed or expires,
or the user's policies or tags change, by whatever way.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import msgspec

from auth.auth_errors import SessionEnded
from cluster.clock import Clock, Entropy
from cluster.coordination.records import Draft, Records
from cluster.keys.identity_records import IdentityRows, StoredSession
from visibility.contract.errors import InvalidParameterValue, RequestThrottled

LASTS_MS = 8 * 3600 * 1000
CHALLENGE_MS = 120_000
"""Time to answer a challenge."""
OF_OWNER_MAX = 20
"""Sessions of one user, or of the root of an account; a new one ends the oldest."""
SESSIONS_MAX = 2_000
CHALLENGES_MAX = 1_000
_TOKEN_BYTES = 32
_ID_CHARACTERS = 16
_SWEPT_MAX = 40
"""Records that one transaction forgets: etcd has a limit."""
_AGENT_CHARACTERS_MAX = 200

T = TypeVar("T")


class Signer(NamedTuple):
    """The caller who signs in, and the place. `access_key_id` is None without a key."""

    account: str
    region: str
    principal: str
    user: str | None
    access_key_id: str | None
    source_ip: str
    user_agent: str


class Challenge(NamedTuple):
    """A challenge that was answered; it was valid until this time."""

    challenge_id: str
    until_ms: int


class Session(NamedTuple):
    """A session and its id, which is no secret."""

    session_id: str
    stored: StoredSession


class SessionStore:
    """Changes may raise IdentitiesUnreadable."""

    def __init__(self, records: Records, clock: Clock, entropy: Entropy) -> None:
        """`records` are those of users and access keys."""
        self._records = records
        self._clock = clock
        self._entropy = entropy

    def find(self, token: str) -> Session:
        """The session of this token. Raises SessionEnded."""
        name = _hash(token)
        rows = IdentityRows(Draft(self._records.view))
        stored = rows.session(name)
        now_ms = self._now_ms()
        if stored is None or now_ms >= stored.expires_at_ms:
            raise SessionEnded
        if not _holds_key(rows, stored, now_ms):
            raise SessionEnded("The access key of your session was disabled: sign in again.")
        if _rights(rows, stored.account, stored.user) != stored.rights:
            raise SessionEnded("Your rights have changed: sign in again.")
        return Session(_id(name), stored)

    async def begin(self, signer: Signer, challenge: Challenge) -> tuple[str, Session]:
        """A new session with its token, which ends with its access key, or in eight hours.

        Raises InvalidParameterValue if the challenge was answered before, SessionEnded if key or
        user are gone, RequestThrottled.
        """
        token = urlsafe_b64encode(self._entropy.secret(_TOKEN_BYTES)).decode().rstrip("=")
        name = _hash(token)

        def insert(rows: IdentityRows) -> StoredSession:
            now_ms = self._now_ms()
            _answer_once(rows, challenge, now_ms)
            stored = _session_of(rows, signer, now_ms)
            _make_room(rows, stored, now_ms)
            rows.put_session(name, stored)
            return stored

        stored = await self._change(insert)
        return token, Session(_id(name), stored)

    def of(self, account: str, user: str | None) -> list[Session]:
        """The sessions of a user, or of the root of an account, the newest first."""
        rows, now_ms = IdentityRows(Draft(self._records.view)), self._now_ms()
        found = [
            Session(_id(name), stored)
            for name, stored in rows.all_sessions().items()
            if (stored.account, stored.user) == (account, user)
            and now_ms < stored.expires_at_ms
            and _holds_key(rows, stored, now_ms)
            and _rights(rows, account, user) == stored.rights
        ]
        return sorted(found, key=lambda each: each.stored.created_at_ms, reverse=True)

    async def end(self, account: str, user: str | None, session_id: str | None) -> int:
        """End a session of a user, or all (None). Returns how many there were."""

        def remove(rows: IdentityRows) -> int:
            of_owner = [
                name
                for name, stored in rows.all_sessions().items()
                if (stored.account, stored.user) == (account, user)
                and session_id in (None, _id(name))
            ]
            for name in of_owner:
                rows.put_session(name, None)
            return len(of_owner)

        return await self._change(remove)

    # -- records -----------------------------------------------------------------------------------

    async def _change(self, decide: Callable[[IdentityRows], T]) -> T:
        return await self._records.change(lambda draft: decide(IdentityRows(draft)))

    def _now_ms(self) -> int:
        return int(self._clock.wall_s() * 1000)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def session_id_of(token: str) -> str:
    """The id of the session of a token, whether there is one or not."""
    return _id(_hash(token))


def _id(name: str) -> str:
    return name[:_ID_CHARACTERS]


def _holds_key(rows: IdentityRows, stored: StoredSession, now_ms: int) -> bool:
    """True while the key that signed in could do so again, or if there was none."""
    if stored.access_key_id is None:
        return True
    key = rows.key(stored.access_key_id)
    if key is None or not key.enabled or key.account != stored.account or key.user != stored.user:
        return False
    return key.expires_at_ms is None or now_ms < key.expires_at_ms


def _rights(rows: IdentityRows, account: str, name: str | None) -> str | None:
    """A digest of what decides over a user's requests; None without such a user. That of the root
    never changes."""
    if name is None:
        return ""
    user = rows.user(account, name)
    if user is None:
        return None
    said = [user.user_id, sorted(user.policies.items()), sorted(user.tags.items())]
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()


def _session_of(rows: IdentityRows, signer: Signer, now_ms: int) -> StoredSession:
    rights = _rights(rows, signer.account, signer.user)
    ends_ms = now_ms + LASTS_MS
    if signer.access_key_id is not None:
        key = rows.key(signer.access_key_id)
        if key is not None and key.expires_at_ms is not None:
            ends_ms = min(ends_ms, key.expires_at_ms)
    if rights is None:
        raise SessionEnded
    stored = StoredSession(
        signer.account,
        signer.region,
        signer.principal,
        rights,
        now_ms,
        ends_ms,
        signer.user,
        signer.access_key_id,
        signer.source_ip,
        signer.user_agent[:_AGENT_CHARACTERS_MAX],
    )
    if not _holds_key(rows, stored, now_ms):
        raise SessionEnded
    return stored


def _answer_once(rows: IdentityRows, challenge: Challenge, now_ms: int) -> None:
    """Note the answer, and forget those of challenges that have ended."""
    if now_ms >= challenge.until_ms:
        raise InvalidParameterValue("The challenge has ended: sign in again.")
    answered = rows.challenges()
    if challenge.challenge_id in answered:
        raise InvalidParameterValue("The challenge was answered before: sign in again.")
    ended = [name for name, until_ms in answered.items() if now_ms >= until_ms]
    for name in ended[:_SWEPT_MAX]:
        rows.put_challenge(name, None)
    if len(answered) - len(ended) >= CHALLENGES_MAX:
        raise RequestThrottled("Too many browsers sign in: try again in a minute.")
    rows.put_challenge(challenge.challenge_id, challenge.until_ms)


def _make_room(rows: IdentityRows, new: StoredSession, now_ms: int) -> None:
    """Forget sessions that have ended, and the oldest ones beyond the limits."""
    by_age = sorted(rows.all_sessions().items(), key=lambda each: each[1].created_at_ms)
    gone = [name for name, each in by_age if now_ms >= each.expires_at_ms][:_SWEPT_MAX]
    owner = (new.account, new.user)
    of_owner = [name for name, each in by_age if (each.account, each.user) == owner]
    gone += of_owner[: max(0, len(of_owner) - OF_OWNER_MAX + 1)]
    if len(by_age) - len(set(gone)) >= SESSIONS_MAX:
        gone.append(by_age[0][0])
    for name in set(gone):
        rows.put_session(name, None)
