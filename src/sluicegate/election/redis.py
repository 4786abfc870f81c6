"""`RedisElection`: the lease is a key in Redis that runs out by itself.

Two keys, with one hash tag, so that both are on one server of a Redis Cluster:

    sluicegate:{election:default}:lease     the owner, with an expiry: a string
    sluicegate:{election:default}:epoch     the epoch of the last leadership, for ever: a number

Each step is one script, atomic in Redis. It is best effort. Redis replicates asynchronously, so a
failover may forget a lease that was just given, and it measures expiries by its wall clock. Then
two candidates may lead for up to one lease, and the epoch is the guard: a candidate passes the
highest epoch that it knows, and the new one is above both that and the one in Redis.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from sluicegate._validate import check_between
from sluicegate.election.candidacy import Held, Outcome, Regressed, Taken, Vacant
from sluicegate.election.election import boottime
from sluicegate.election.lease_election import LeaseElection
from sluicegate.election.owner import Owner, check_name
from sluicegate.errors import ConfigError, ProtocolError
from sluicegate.redis_client import AsyncRedisPool, ErrorReply, pack

__all__ = ["RedisElection"]

_LUA = Path(__file__).parent / "lua"
_ESCAPES = str.maketrans({"{": "%7B", "}": "%7D", "%": "%25"})
_REFUSALS = ("NOAUTH", "NOPERM", "WRONGPASS", "WRONGTYPE")  # that no second try mends


class RedisElection(LeaseElection):
    """A candidate for the lease of `group` in the Redis of `url`.

    - `lease`: seconds for which a leader leads without a renewal; the same for all candidates.
    - `timeout`: seconds for one call of Redis; a quarter of the lease by default.
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        group: str = "default",
        lease: float = 2.0,
        prefix: str = "sluicegate:",
        timeout: float | None = None,
    ) -> None:
        check_name("name", name)
        check_name("group", group)
        if "{" in prefix or "}" in prefix:
            raise ValueError(
                f"prefix must not contain braces, which mark the hash tag, got {prefix!r}"
            )
        lease = check_between("lease", lease, 0.1, 3600.0)
        timeout = lease / 4 if timeout is None else check_between("timeout", timeout, 0.001, lease)
        start = f"{prefix}{{election:{group.translate(_ESCAPES)}}}"
        keys = (f"{start}:lease".encode(), f"{start}:epoch".encode())
        store = _RedisLease(AsyncRedisPool(url, timeout), keys, Owner.new(name), lease, timeout)
        super().__init__(name, lease, store)


class _Script:
    def __init__(self, name: str) -> None:
        self.name = name
        self.text = (_LUA / f"{name}.lua").read_bytes()
        self.hash = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()


_CLAIM, _RENEW, _RELEASE = _Script("claim"), _Script("renew"), _Script("release")


class _RedisLease:
    """The scripts as a `LeaseStore`."""

    def __init__(
        self,
        pool: AsyncRedisPool,
        keys: tuple[bytes, bytes],
        owner: Owner,
        lease: float,
        timeout: float,
    ) -> None:
        self._pool = pool
        self._keys = keys
        self._owner = owner
        self._lease = lease
        self._lease_ms = round(lease * 1000)
        self._timeout = timeout
        self._may_hold = False

    async def claim(self, known: int, may_reset: bool) -> Outcome:
        self._may_hold = True
        sent = boottime()
        words = (self._owner.value, self._lease_ms, known, int(may_reset))
        return self._read(_CLAIM, await self._call(_CLAIM, self._keys, words), sent)

    async def renew(self, epoch: int) -> Outcome:
        sent = boottime()
        words = (self._owner.value, self._lease_ms, epoch)
        return self._read(_RENEW, await self._call(_RENEW, self._keys, words), sent)

    async def release(self) -> None:
        if self._may_hold:
            await self._call(_RELEASE, self._keys[:1], (self._owner.value,))

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        await self._pool.close()

    async def _call(
        self, script: _Script, keys: Sequence[bytes], words: Sequence[bytes | int]
    ) -> Any:
        """Call a script by its hash, or send it whole when Redis does not know it (any more).

        A call whose reply was lost may be repeated: a claim then finds its own lease, and takes
        it once more with the next epoch.
        """
        deadline = monotonic() + self._timeout
        for head in (("EVALSHA", script.hash), ("EVAL", script.text)):
            payload = pack(*head, len(keys), *keys, *words)
            try:
                (reply,) = await self._pool.exchange(keys[0], payload, 1, deadline)
            except ErrorReply as error:  # to the login
                reply = error
            if not isinstance(reply, ErrorReply) or reply.code != "NOSCRIPT":
                break
        if isinstance(reply, ErrorReply):
            if reply.code in _REFUSALS or "AUTH" in reply.message:
                self._may_hold = False  # and a release would be refused, too
                raise ConfigError(f"Redis at {self._pool.address} refuses the election: {reply}")
            raise reply
        return reply

    def _read(self, script: _Script, reply: object, sent: float) -> Outcome:
        match reply:
            case [int(state), int(epoch), int(left), bytes(owner)] if epoch >= 0:
                pass
            case _:
                raise _invalid(script, reply)
        self._may_hold = state == 1
        match state:
            case 1:
                return Held(sent, self._lease, epoch)
            case 0:
                # A key without an expiry was written by hand, and stays until it is deleted.
                remaining = min(left / 1000, self._lease) if left >= 0 else self._lease
                return Taken(Owner(owner).name, epoch, remaining)
            case 2:
                return Vacant()
            case -1:
                return Regressed(epoch, "nothing is claimed for one lease")
        raise _invalid(script, reply)


def _invalid(script: _Script, reply: object) -> ProtocolError:
    return ProtocolError(f"invalid reply from Redis to the script {script.name}: {reply!r:.200}")
