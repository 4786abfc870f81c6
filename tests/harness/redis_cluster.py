"""`RedisCluster`: a real cluster of three servers, whose slots a test moves from one to another."""

from contextlib import ExitStack
from pathlib import Path

import redis

from sluicegate.redis_client.topology import SLOTS, slot_of
from tests.harness.servers import RedisServer
from tests.harness.waits import PATIENCE, wait_for

__all__ = ["RedisCluster"]

_SERVERS = 3
# Beyond any pause of a busy machine: no server is to be taken for dead.
_NODE_TIMEOUT_MS = int(PATIENCE * 1000)


class RedisCluster:
    """Three servers with a third of the slots each."""

    def __init__(self, directory: Path) -> None:
        with ExitStack() as stack:
            self.servers: list[RedisServer] = []
            for number in range(_SERVERS):
                own = directory / str(number)
                own.mkdir()
                options = ("--cluster-enabled", "yes", "--cluster-node-timeout")
                server = RedisServer(own, *options, str(_NODE_TIMEOUT_MS))
                stack.callback(server.close)
                self.servers.append(server)
            self._clients = [stack.enter_context(server.client) for server in self.servers]
            self._ids = [client.execute_command("CLUSTER MYID") for client in self._clients]
            self._join()
            self._stack = stack.pop_all()

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{one.port}" for one in self.servers)

    def owner(self, key: str) -> int:
        """The number of the server that holds the slot of `key`, as all of them see it."""
        slot = slot_of(key.encode())
        owners = {self._owner_at(client, slot) for client in self._clients}
        assert len(owners) == 1, f"the servers do not agree on the slot {slot}: {owners}"
        return owners.pop()

    def client_of(self, key: str) -> "redis.Redis":
        """redis-py to the server of `key`."""
        return self._clients[self.owner(key)]

    def keys(self, number: int) -> list[str]:
        return sorted(self._clients[number].scan_iter())

    def clear(self) -> None:
        """Remove all keys."""
        for client in self._clients:
            client.flushall()

    def begin_move(self, key: str, to: int) -> None:
        """Begin to move the slot of `key`. Its keys stay where they are until `move_key`."""
        slot, source = slot_of(key.encode()), self.owner(key)
        self._clients[to].execute_command("CLUSTER SETSLOT", slot, "IMPORTING", self._ids[source])
        self._clients[source].execute_command("CLUSTER SETSLOT", slot, "MIGRATING", self._ids[to])

    def move_key(self, key: str, to: int) -> None:
        """Move one key of a slot that is being moved."""
        port = self.servers[to].port
        client = self.client_of(key)
        client.execute_command("MIGRATE", "127.0.0.1", port, key, 0, int(PATIENCE * 1000))

    def keys_of_slot(self, key: str) -> list[str]:
        """The keys of the slot of `key` that its server still holds."""
        slot = slot_of(key.encode())
        return list(self.client_of(key).execute_command("CLUSTER GETKEYSINSLOT", slot, 1000))

    def end_move(self, key: str, to: int) -> None:
        """The slot belongs to the server `to` from now on, which holds all of its keys."""
        slot, source = slot_of(key.encode()), self.owner(key)
        for number in (to, source, *range(_SERVERS)):
            self._clients[number].execute_command("CLUSTER SETSLOT", slot, "NODE", self._ids[to])

    def close(self) -> None:
        self._stack.close()

    def _join(self) -> None:
        bounds = [SLOTS * number // _SERVERS for number in range(_SERVERS + 1)]
        for number, client in enumerate(self._clients):
            client.execute_command("CLUSTER ADDSLOTS", *range(bounds[number], bounds[number + 1]))
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        for server in self.servers[1:]:
            self._clients[0].execute_command("CLUSTER MEET", "127.0.0.1", server.port)
        for client in self._clients:
            wait_for(lambda client=client: self._knows_all(client))

    def _knows_all(self, client: "redis.Redis") -> bool:
        info = client.execute_command("CLUSTER INFO")
        known = {str(self._owner_at(client, slot)) for slot in (0, SLOTS // 2, SLOTS - 1)}
        return info["cluster_state"] == "ok" and known == {"0", "1", "2"}

    def _owner_at(self, client: "redis.Redis", slot: int) -> int | None:
        """The owner of a slot, as one server sees it."""
        ports = [server.port for server in self.servers]
        for first, last, (_, port, *_), *_ in client.execute_command("CLUSTER SLOTS"):
            if first <= slot <= last:
                return ports.index(port)
        return None
