"""Packages that import the modules behind their public names on first use (PEP 562)."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["lazy_exports"]


def lazy_exports(
    package: dict[str, Any], modules: Mapping[str, Iterable[str]]
) -> Callable[[str], Any]:
    """The `__getattr__` of the package with these globals. `modules`: names by module."""
    module_of = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        module = module_of.get(name)
        if module is None:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        value = package[name] = getattr(importlib.import_module(module), name)
        return value

    return get
