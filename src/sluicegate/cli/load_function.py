"""Functions that are named on the command line as MODULE:FUNCTION."""

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from sluicegate.errors import ConfigError

__all__ = ["add_current_folder", "load_function", "module_name"]


def add_current_folder() -> None:
    """Find modules in the current folder first, as `python -m` does."""
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)


def module_name(text: str) -> str:
    """The MODULE of MODULE:FUNCTION."""
    module, colon, name = text.partition(":")
    parts = [*module.split("."), *name.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        raise ConfigError(f"expected MODULE:FUNCTION, like app.translate:handle, got {text!r}")
    return module


def load_function(text: str, takes: str) -> Callable[[Any], Any]:
    """Import MODULE:FUNCTION. It is called with one argument; `takes` says what that is."""
    module = module_name(text)
    found: Any = _import(module)
    for name in text.partition(":")[2].split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise ConfigError(f"{text}: module {module!r} has no {name!r}") from None
    if inspect.isclass(found) or not callable(found):
        kind = "a class" if inspect.isclass(found) else f"a {type(found).__name__}"
        raise ConfigError(f"{text}: expected a function, got {kind}")
    try:
        inspect.signature(found).bind(None)
    except TypeError as error:
        raise ConfigError(
            f"{text}: the function is called with one argument, {takes}: {error}"
        ) from None
    except ValueError:
        pass  # a function in C that does not say what it takes
    function: Callable[[Any], Any] = found
    return function


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(f"no module named {error.name!r} in {sys.path[0]}") from None
        raise ConfigError(_failure(name, error)) from error
    except (Exception, SystemExit) as error:
        raise ConfigError(_failure(name, error)) from error


def _failure(name: str, error: BaseException) -> str:
    """What a module has raised, and where, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError):
        where = ""  # it says so itself
    return f"cannot import {name!r}: {type(error).__name__}: {error}{where}"
