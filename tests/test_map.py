"""The arrows of the map, where import-linter cannot see them: in the compiled files."""

import re
from pathlib import Path

import sluicegate

SOURCE = Path(sluicegate.__file__).parent
KNOWN_TO_ALL = {"clock", "errors", "_time"}
KNOWN_TO = {"quota": {"limits"}}
IMPORT = re.compile(r"^\s*(?:from|c?import)\s+sluicegate\.(\w+)", re.MULTILINE)


def test_compiled_files_import_only_their_own_part_and_what_is_below_all() -> None:
    compiled = [*SOURCE.rglob("*.pyx"), *SOURCE.rglob("*.pxd")]
    assert compiled
    for path in compiled:
        part = path.relative_to(SOURCE).parts[0]
        allowed = KNOWN_TO_ALL | KNOWN_TO.get(part, set())
        allowed |= {part} if path.parent != SOURCE else set()
        assert set(IMPORT.findall(path.read_text())) <= allowed, path
