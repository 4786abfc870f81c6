"""Where the end node in Lua, for nginx, is in this installation."""

from pathlib import Path

__all__ = ["LUA"]

# Of a wheel it is a part of the package; of a clone it is a link to the folder `lua`.
LUA = (Path(__file__).parents[1] / "lua").resolve()
