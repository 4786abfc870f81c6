"""`EtcdElection`: the lease is a lease of etcd, with one key attached to it.

    sluicegate/election/default     the owner: it exists while somebody leads

A candidate looks at the key. If there is none, it asks for a lease of its own, and creates the key
with it in a transaction that holds only if the key does not exist. Whoever creates it leads, and
the revision at which it was created is the epoch: etcd counts revisions by consensus, and they only
grow. The others watch the key, and try as soon as it is gone.

A renewal is a keep-alive, followed by a look at the key. The look is linearizable: the key still
exists, and the member that answered is not cut off from the cluster. A keep-alive alone does not
show that: a member that has led etcd may go on renewing leases for a moment (etcd issue 15247).
"""

import asyncio
import base64
import binascii
import contextlib
import math
import secrets
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sluicegate._validate import check_between, check_text
from sluicegate.election.candidacy import Held, Outcome, Regressed, Taken, Vacant
from sluicegate.election.election import boottime
from sluicegate.election.etcd_gateway import NOT_FOUND, EtcdError, EtcdGateway, check_endpoints
from sluicegate.election.lease_election import LeaseElection
from sluicegate.election.owner import Owner, check_name
from sluicegate.errors import ProtocolError, SluicegateError

__all__ = ["EtcdElection"]

_MAX_INT64 = 2**63 - 1
_MAX_LEASE = 3600  # seconds
_ADVICE = (
    "nobody can lead until its revision is above that: restore it from a snapshot with a higher "
    "one (etcdutl snapshot restore --bump-revision)"
)


class EtcdElection(LeaseElection):
    """A candidate for the lease of `group` in the etcd cluster of `endpoints`.

    - `endpoints`: URLs of its members, like `["http://etcd-1:2379", "http://etcd-2:2379"]`.
    - `lease`: seconds for which a leader leads without a renewal. etcd counts whole seconds: a
      fraction is rounded up, and etcd itself raises what is below its minimum, 2 seconds unless its
      election timeout was changed.
    - `user`, `password`: for a cluster with authentication.
    - `tls`: for endpoints with `https:` whose authority the system does not know, or that want a
      certificate of the client.
    - `timeout`: seconds for one call of one endpoint; a quarter of the lease by default.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str],
        name: str,
        *,
        group: str = "default",
        lease: float = 2.0,
        prefix: str = "sluicegate/",
        user: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout: float | None = None,
    ) -> None:
        check_name("name", name)
        check_name("group", group)
        seconds = math.ceil(check_between("lease", lease, 1.0, _MAX_LEASE))
        if timeout is None:
            timeout = seconds / 4
        check_between("timeout", timeout, 0.001, seconds)
        urls = check_endpoints(endpoints)
        gateway = EtcdGateway(urls, login=_check_login(user, password), tls=tls, timeout=timeout)
        key = f"{prefix}election/{group}".encode()
        super().__init__(name, seconds, _EtcdLease(gateway, key, Owner.new(name), seconds))


def _check_login(user: str | None, password: str | None) -> tuple[str, str] | None:
    if user is None and password is None:
        return None
    if user is None or password is None:
        missing = "user" if user is None else "password"
        raise ValueError(f"user and password must be given together, got no {missing}")
    return check_text("user", user), check_text("password", password)


@dataclass(frozen=True, slots=True)
class _Key:
    """The key of the election as etcd has it."""

    owner: Owner
    created: int  # the revision
    lease: int  # the id; 0: none


class _EtcdLease:
    """The calls of the gateway as a `LeaseStore`."""

    def __init__(self, gateway: EtcdGateway, key: bytes, owner: Owner, lease: int) -> None:
        self._gateway = gateway
        self._key = _base64(key)
        self._owner = owner
        self._lease = lease
        self._id = 0  # of the lease that was last asked for; 0: nothing to give back
        self._watch_from = 0  # the revision from which on a change of the key is news; 0: none

    async def claim(self, known: int, may_reset: bool) -> Outcome:
        found = await self._look()
        if found is not None and found.owner != self._owner:
            return self._taken(found)
        if found is not None:  # of an earlier leadership, or of a claim whose reply was lost
            await self._revoke(found.lease)
        sent = boottime()
        seconds = await self._grant()
        found = await self._create()
        if (found.owner, found.lease) != (self._owner, self._id):
            self._watch_from = found.created + 1
            await self.release()
            return self._taken(found)
        if found.created <= known:
            # The revisions of etcd cannot be raised: `may_reset` does not help here.
            await self.release()
            return Regressed(found.created, _ADVICE)
        return Held(sent, seconds, found.created)

    async def renew(self, epoch: int) -> Outcome:
        sent = boottime()
        reply = await self._gateway.call("/v3/lease/keepalive", {"ID": str(self._id)})
        result = _dict("result", reply.get("result"))
        seconds = _int("TTL", result.get("TTL", 0), _MAX_LEASE)
        found = await self._look()
        if found is not None and found.owner != self._owner:
            return self._taken(found)
        if seconds == 0 or found is None or (found.created, found.lease) != (epoch, self._id):
            return Vacant()
        return Held(sent, seconds, epoch)

    async def release(self) -> None:
        lease, self._id = self._id, 0
        if lease:
            await self._revoke(lease)

    async def wait(self, seconds: float) -> None:
        """Watch the key. A watch that fails is no worse than none: the wait has an end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                if self._watch_from and await self._watch():
                    return
                await asyncio.sleep(seconds)

    async def close(self) -> None:
        await self._gateway.close()

    async def _watch(self) -> bool:
        """Whether the key has changed; False if it cannot be watched."""
        create = {"key": self._key, "start_revision": str(self._watch_from)}
        try:
            async with contextlib.aclosing(
                self._gateway.watch({"create_request": create})
            ) as messages:
                async for message in messages:
                    result = _dict("result", message.get("result"))
                    if result.get("canceled"):
                        self._gateway.log_out()  # the usual reason: the token has expired
                        return False
                    if result.get("events"):
                        return True
        except SluicegateError:
            self._gateway.leave_endpoint()
        return False

    async def _look(self) -> _Key | None:
        self._watch_from = 0
        reply = await self._gateway.call("/v3/kv/range", {"key": self._key})
        header = _dict("header", reply.get("header"))
        revision = _int("revision", header.get("revision", 0), _MAX_INT64)
        found = _read_key(reply)
        if found is not None:
            self._watch_from = revision + 1
        return found

    async def _grant(self) -> int:
        """Ask for a lease; returns its seconds. We choose the id, to be able to give it back."""
        self._id = secrets.randbelow(_MAX_INT64) + 1
        body = {"ID": str(self._id), "TTL": str(self._lease)}
        reply = await self._gateway.call("/v3/lease/grant", body)
        seconds = _int("TTL", reply.get("TTL"), _MAX_LEASE)
        if seconds < self._lease:
            raise ProtocolError(
                f"invalid reply from etcd: a lease of {self._lease} s or more was asked for, got "
                f"{seconds} s"
            )
        return seconds

    async def _create(self) -> _Key:
        """Create the key if there is none; returns what there is now."""
        look = {"request_range": {"key": self._key}}
        put = {"key": self._key, "value": _base64(self._owner.value), "lease": str(self._id)}
        body = {
            "compare": [{"key": self._key, "target": "CREATE", "create_revision": "0"}],
            "success": [{"request_put": put}, look],
            "failure": [look],
        }
        reply = await self._gateway.call("/v3/kv/txn", body)
        responses = reply.get("responses")
        last = responses[-1] if isinstance(responses, list) and responses else None
        found = _read_key(_dict("responses", _dict("responses", last).get("response_range")))
        if found is None:
            raise _invalid("responses", responses)
        return found

    async def _revoke(self, lease: int) -> None:
        try:
            await self._gateway.call("/v3/lease/revoke", {"ID": str(lease)})
        except EtcdError as error:
            if error.code != NOT_FOUND:  # it has run out
                raise

    def _taken(self, found: _Key) -> Taken:
        # How long its lease still lasts would cost a call; the watch tells when it ends.
        return Taken(found.owner.name, found.created, self._lease)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _dict(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _invalid(name, value)
    return value


def _int(name: str, value: object, most: int) -> int:
    """An int64, which the JSON of etcd has as a string."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise _invalid(name, value)
    return value


def _read_key(reply: dict[str, Any]) -> _Key | None:
    """The one key in the reply to a range request."""
    keys = reply.get("kvs", [])
    if not isinstance(keys, list) or len(keys) > 1:
        raise _invalid("kvs", keys)
    if not keys:
        return None
    found = _dict("kvs", keys[0])
    try:
        owner = Owner(base64.b64decode(found.get("value", ""), validate=True))
    except (binascii.Error, TypeError, ValueError):
        raise _invalid("value", found.get("value")) from None
    created = _int("create_revision", found.get("create_revision"), _MAX_INT64)
    return _Key(owner, created, _int("lease", found.get("lease", 0), _MAX_INT64))


def _invalid(name: str, value: object) -> ProtocolError:
    return ProtocolError(f"invalid reply from etcd: invalid {name}: {value!r:.200}")
