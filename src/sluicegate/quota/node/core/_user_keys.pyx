# cython: language_level=3, binding=False
"""Keys of users in the shared memory of a host, and the memory's default name.

A key is the service's number and the UTF-8 of the user's name. A name of more than MAX_USER_BYTES
bytes is truncated and ends with its MD5. Users for whom there is no room share OVERFLOW_RECORDS
records of each service, by a hash of their names; those keys have another kind, BYTES, so that no
user's name can be one of them.
"""

import hashlib
import re

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from sluicegate.shm._lockfree_table cimport BYTES

from sluicegate._validate import encode_utf8
from sluicegate.quota.stable_hash import hash_fraction

__all__ = ["default_memory_name"]


cdef object encode_key(object user, Key *key):
    """`make_user_key` for names that are not short ASCII."""
    key_owner = encode_utf8("user", user)
    if len(key_owner) > MAX_USER_BYTES:
        digest = hashlib.md5(key_owner, usedforsecurity=False).hexdigest()
        start = key_owner[: MAX_USER_BYTES - 33].decode("utf-8", "ignore")
        key_owner = f"{start}~{digest}".encode()
    key.data = PyBytes_AS_STRING(key_owner)
    key.size = <uint32_t> PyBytes_GET_SIZE(key_owner)
    return key_owner


cdef object overflow_key(Key *key):
    """Turn a user's key into that of the overflow record it shares with others."""
    key_owner = f"~{int(hash_fraction(name_in_key(key)) * OVERFLOW_RECORDS)}".encode()
    key.data = PyBytes_AS_STRING(key_owner)
    key.size = <uint32_t> PyBytes_GET_SIZE(key_owner)
    key.kind = BYTES
    return key_owner


cdef bint is_overflow_name(str user):
    return len(user) <= 4 and user[0] == "~" and user[1:].isdecimal()


cdef str name_in_key(Key *key):
    return key.data[: key.size].decode("utf-8", "surrogatepass")


def default_memory_name(node_id):
    """The name of a node's shared memory if none is given."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", node_id)[:60]
    if plain != node_id:
        encoded = node_id.encode("utf-8", "surrogatepass")
        plain += f"-{hashlib.md5(encoded, usedforsecurity=False).hexdigest()[:8]}"
    return f"node-{plain}"
