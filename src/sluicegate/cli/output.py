"""Where a command writes: a terminal, a pipe, or one that was closed meanwhile."""

import contextlib
import locale
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "can_show",
    "discard",
    "is_terminal",
    "open_console",
    "printable",
    "progress_bar",
    "tell_saved",
    "tell_written",
    "write_file",
]


def is_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def open_console(command: str) -> "Console | None":
    """Rich's console; None, and a message on stderr, if Rich is not installed."""
    try:
        from rich.console import Console
    except ImportError:
        sys.stderr.write(f"{command} needs rich to draw: pip install rich\n")
        return None
    return Console(highlight=False)


def can_show(text: str, console: "Console") -> bool:
    """Whether the terminal has these characters.

    With LC_ALL=C Python writes UTF-8, whatever the terminal shows, so both encodings count.
    """
    try:
        for encoding in (console.encoding, locale.getencoding()):
            text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def printable(value: object) -> str:
    """`value` as text without control characters, for what others have sent."""
    text = f"{value:.15g}" if isinstance(value, float) else str(value)
    return "".join(character if character.isprintable() else "?" for character in text)


def discard(stream: TextIO | None = None) -> None:
    """Discard what is still buffered for stdout; else Python tries to write it again at exit."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, (stream or sys.stdout).fileno())
        os.close(null)


def write_file(path: str, text: str, mode: str, what: str = "the HTML report") -> bool:
    """Whether it could be written; if not, stderr says why."""
    try:
        with open(path, mode, encoding="utf-8") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"sluicegate simulate: cannot write {what}: {error}\n")
        return False
    return True


def tell_written(*paths: str | None) -> None:
    """Say on stderr which files were written; None: none was asked for."""
    for path in paths:
        if path is not None:
            sys.stderr.write(f"wrote {path}\n")


def tell_saved(path: str | None, seed: int) -> None:
    """Say on stderr how a saved random cluster is run again: the seed is not in the file."""
    if path is None:
        return
    file = path if path.endswith(".toml") else f"{path}.toml"
    is_renamed = "" if file == path else "rename it and "
    command = f"sluicegate simulate {shlex.quote(file)} --seed {seed}"
    sys.stderr.write(f"saved {path}: {is_renamed}run it with: {command}\n")


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[str, float], object] | None]:
    """A progress bar on stderr, if that is a terminal and Rich is installed."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield None
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, part: bar.update(task, description=what, completed=part)
