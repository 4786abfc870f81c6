"""Path patterns: which paths a rule is about.

    /search            that path
    /users/{id}/posts  any one segment in place of {id}; so {id:int}, as some frameworks write
    /files/{name:path} any number of segments
    /api/*             /api and everything below it
    /api*              everything that begins so: /apis, too
    None               every path

What must not happen is that a request reaches a view and not its rule. So paths are
compared more loosely than frameworks route: case does not count, nor do slashes that are
doubled or trailing, nor a line's end. `//API/` falls under a rule for `/api`, whether or
not the framework would take it there; a rule may thus count a request that ends in a 404,
which does no harm. Nothing is decoded here: the path comes decoded once, as the framework
routes it, so `/api%2Fx` is `/api/x` for both, and `/api%252Fx` for neither.
"""

import re
from collections.abc import Callable

__all__ = ["matcher", "normalize_path"]

_SLASHES = re.compile("//+")
_PARAMETER = re.compile(r"\{[^{}/]*\}")


def normalize_path(path: str) -> str:
    """The path in the form that is compared: lower case, single slashes, none at the end."""
    if "//" in path:
        path = _SLASHES.sub("/", path)
    # Starlette's "$" matches before a line's end, too.
    return path.rstrip("/\n").lower()


def matcher(pattern: str) -> Callable[[str], object]:
    """A function that is true of the normalized paths that the pattern means."""
    body = pattern.removesuffix("*")
    if not pattern.startswith("/") and pattern != "*":
        raise ValueError(f"path must begin with '/', got {pattern!r}")
    if "<" in body or ">" in body:
        raise ValueError(f"path parameters are written {{name}}, not <name>, got {pattern!r}")
    if "*" in body:
        raise ValueError(f"'*' is allowed only at the end of a path, got {pattern!r}")
    if "{" in _PARAMETER.sub("", body) or "}" in _PARAMETER.sub("", body):
        raise ValueError(f"path parameters must be within one segment, got {pattern!r}")
    if body.count(":path}") > 1:  # to match several takes time that a long path could stretch
        raise ValueError(f"path must have at most one {{name:path}}, got {pattern!r}")
    is_open = body != pattern
    is_tree = is_open and body.endswith("/")
    body = normalize_path(body)
    if is_open and not body:
        return lambda path: True
    if "{" not in body:
        if is_tree:
            below = f"{body}/"
            return lambda path: path == body or path.startswith(below)
        return (lambda path: path.startswith(body)) if is_open else body.__eq__
    regex, at = "", 0
    for parameter in _PARAMETER.finditer(body):
        literal, is_path = body[at : parameter.start()], parameter[0].endswith(":path}")
        if is_path and literal.endswith("/"):  # it may be empty, and then its slash is doubled
            regex += re.escape(literal[:-1]) + "(?:/.*)?"
        else:
            regex += re.escape(literal) + (".*" if is_path else "[^/]+")
        at = parameter.end()
    regex += re.escape(body[at:]) + ("(?:/.*)?" if is_tree else ".*" if is_open else "")
    return re.compile(regex, re.DOTALL).fullmatch
