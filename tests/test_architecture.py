"""The map of docs/architecture.md: every file is on it, and the arrows of compiled files hold, too.

import-linter checks the Python files (.importlinter); it cannot see compiled ones.
"""

import re
from pathlib import Path

import pytest

import sluicegate

SOURCE = Path(sluicegate.__file__).parent
MAP = Path(__file__).parents[1] / "docs" / "architecture.md"
KNOWN_TO_ALL = {"clock", "errors", "_clock", "_minmax", "_validate", "_key_normalize"}
# What compiled files of a part may import beside their own part, the longest prefix counts.
MAY_IMPORT = {
    "": set(),
    "balance": {"shm"},
    "cache": set(),
    "limits": {"shm"},
    "pacing": {"stores.store"},
    "redis_client": set(),
    "quota": {"quota.messages", "quota.packed", "quota.errors", "quota.stable_hash"},
    "quota.packed": {"quota.messages"},
    "quota.node": {
        *("quota.messages", "quota.packed", "quota.errors", "quota.stable_hash", "quota.wire"),
        "shm",
    },
    "shm": set(),
}
IMPORT = re.compile(r"^\s*(?:from|c?import)\s+sluicegate\.([\w.]+)", re.MULTILINE)
COMPILED = sorted([*SOURCE.rglob("*.pyx"), *SOURCE.rglob("*.pxd")])


def part_of(module: str) -> str:
    """The part a module belongs to: of quota, which is large, the folder below it."""
    names = module.split(".")
    if len(names) == 1:
        return ""
    return ".".join(names[:2]) if names[0] == "quota" and len(names) > 2 else names[0]


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: str(path.relative_to(SOURCE)))
def test_compiled_files_import_only_their_own_part_and_what_is_below(path: Path) -> None:
    part = part_of(".".join(path.relative_to(SOURCE).with_suffix("").parts))
    prefix = next(p for p in (part, part.split(".")[0], "") if p in MAY_IMPORT)
    allowed = KNOWN_TO_ALL | MAY_IMPORT[prefix]
    for module in IMPORT.findall(path.read_text()):
        names = (part_of(module), module, module.split(".")[0])
        assert part_of(module) == part != "" or any(name in allowed for name in names), module


def drawn() -> set[str]:
    """The files that the map shows, as paths below src/sluicegate."""
    tree = MAP.read_text().split("```")[1]
    found: set[str] = set()
    folders: dict[int, str] = {}
    for line in tree.splitlines()[2:]:
        indent = len(line) - len(line.lstrip())
        above = next((folders[i] for i in sorted(folders, reverse=True) if i < indent), "")
        for name in re.findall(r"[\w/]+(?:\.pyx|\.pxd|\.py|\.lua)\b|[\w/]+/(?= |$)", line):
            if name.endswith("/"):
                folders = {i: at for i, at in folders.items() if i < indent}
                folders[indent] = above + name
                above += name
            else:
                found.add(above + name)
    return found


def test_the_map_shows_the_tree_as_it_is() -> None:
    files = {
        str(path.relative_to(SOURCE))
        for suffix in ("py", "pyx", "pxd", "lua")
        for path in SOURCE.rglob(f"*.{suffix}")
        if path.name not in ("__init__.py", "__main__.py")
    }
    files -= {f"{name[:-4]}.pxd" for name in files if name.endswith(".pyx")}  # drawn with the .pyx
    assert sorted(files - drawn()) == []
    assert sorted(drawn() - files) == []


def test_the_map_of_the_nginx_node_shows_its_files() -> None:
    tree = MAP.read_text().split("```\nlua/throttle/")[1].split("```")[0]
    files = {path.name for path in (MAP.parents[1] / "lua" / "throttle").glob("*.lua")}
    assert set(re.findall(r"^  (\w+\.lua)", tree, re.MULTILINE)) == files


def test_only_the_changelog_knows_the_old_name() -> None:
    root = MAP.parents[1]
    old = b"head" + b"gate"
    folders = ("src", "lua", "tests", "docs", "benchmarks", "examples")
    files = [path for folder in folders for path in (root / folder).rglob("*")]
    files += [path for path in root.iterdir() if path.suffix or path.name == "Makefile"]
    texts = (".py", ".pyx", ".pxd", ".pyi", ".lua", ".md", ".toml", ".json", ".in", "")
    found = [
        path.relative_to(root)
        for path in files
        if path.is_file() and path.suffix in texts and old in path.read_bytes().lower()
    ]
    assert [str(path) for path in found] == ["CHANGELOG.md"]
