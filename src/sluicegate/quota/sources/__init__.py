"""Where a central's limits come from: a TOML file, SQLite, Redis, a function, or a list."""

from sluicegate.quota.sources.opening import open_source
from sluicegate.quota.sources.source import Limits, LimitsSource, NotEditable, TellsChanges

__all__ = ["Limits", "LimitsSource", "NotEditable", "TellsChanges", "open_source"]
