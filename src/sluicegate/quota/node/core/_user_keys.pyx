# cython: language_level=3, binding=False
"""Names as the shared memory of a host has them.

A user is known by his service's number and the UTF-8 of his name. A name of more than LONGEST_USER
bytes is cut and ends with its MD5. Users for whom there is no room share SPARES records of each
service, by a hash of their names; those have another kind, BYTES, so that no user is called so.
"""

import hashlib
import re

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from sluicegate.shm._lockfree_table cimport BYTES

from sluicegate._validate import utf8
from sluicegate.quota.stable_hash import fraction

__all__ = ["name_of_memory"]


cdef object encoded_key(object user, Key *key):
    """`key_of_user`, of names that are not short and plain."""
    kept = utf8("user", user)
    if len(kept) > LONGEST_USER:
        digest = hashlib.md5(kept, usedforsecurity=False).hexdigest()
        start = kept[: LONGEST_USER - 33].decode("utf-8", "ignore")
        kept = f"{start}~{digest}".encode()
    key.data = PyBytes_AS_STRING(kept)
    key.size = <uint32_t> PyBytes_GET_SIZE(kept)
    return kept


cdef object spare_key(Key *key):
    """Make of a user's key that of the record which he shares with others."""
    kept = f"~{int(fraction(name_of(key)) * SPARES)}".encode()
    key.data = PyBytes_AS_STRING(kept)
    key.size = <uint32_t> PyBytes_GET_SIZE(kept)
    key.kind = BYTES
    return kept


cdef bint is_name_of_spare(str user):
    return len(user) <= 4 and user[0] == "~" and user[1:].isdecimal()


cdef str name_of(Key *key):
    return key.data[: key.size].decode("utf-8", "surrogatepass")


def name_of_memory(node_id):
    """The name of a node's memory when it was given none."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", node_id)[:60]
    if plain != node_id:
        encoded = node_id.encode("utf-8", "surrogatepass")
        plain += f"-{hashlib.md5(encoded, usedforsecurity=False).hexdigest()[:8]}"
    return f"node-{plain}"
