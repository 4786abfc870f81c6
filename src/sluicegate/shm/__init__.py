"""A lock-free hash table in memory that all processes of a host share.

`SharedFile` is the file behind it, `_lockfree_table.pyx` the table. The limiters of `limits` and
the end node of `quota` build on both.
"""
