"""Where a central's limits come from: a TOML file, SQLite, Redis, a function, or a list."""

from sluicegate.quota.central.limit_sources.factory import open_source
from sluicegate.quota.central.limit_sources.source import (
    Limits,
    LimitsSource,
    NotEditable,
    TracksOwnWrites,
)

__all__ = ["Limits", "LimitsSource", "NotEditable", "TracksOwnWrites", "open_source"]
