"""The end node without sockets or threads: admission, counters, quotas and reports."""
