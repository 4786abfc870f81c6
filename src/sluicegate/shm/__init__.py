"""A lock-free hash table in memory that all processes of a host share.

`LockFreeTable` is the table, `SharedFile` the file behind it. The limiters of `limits` and the
end node of `quota` build on both.
"""
