"""The Lua node as a package for LuaRocks and for opm: both have every file of lua/throttle."""

import configparser
import re
import subprocess
import tomllib

from tests.harness.nginx import find_luajit
from tests.harness.servers import ROOT
from tests.harness.waits import PATIENCE

LUA = ROOT / "lua"
FILES = sorted(str(path.relative_to(LUA)) for path in LUA.rglob("*.lua"))
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
# A rockspec is a program that sets globals. Its own table keeps it from anything else.
PRINT_ROCKSPEC = """
local spec = {}
setfenv(assert(loadfile(arg[1])), spec)()
print(spec.package, spec.version, spec.build.type)
for name, path in pairs(spec.build.modules) do
    print(name, path)
end
"""


def test_the_rockspec_names_every_file() -> None:
    (path,) = LUA.glob("*.rockspec")
    ran = subprocess.run(
        [find_luajit(), "-", str(path)],
        input=PRINT_ROCKSPEC,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ran.returncode == 0, ran.stderr
    (package, version, kind), *modules = [line.split("\t") for line in ran.stdout.splitlines()]
    assert (version, kind) == (f"{VERSION}-1", "builtin")
    assert path.name == f"{package}-{version}.rockspec"  # or LuaRocks refuses it
    assert sorted(file for _, file in modules) == FILES
    for name, file in modules:
        assert file == name.replace(".", "/") + ".lua"


def test_opm_finds_every_file() -> None:
    ini = configparser.ConfigParser(interpolation=None)
    ini.read_string("[default]\n" + (LUA / "dist.ini").read_text())
    dist = ini["default"]
    assert set(dist) == {
        *("name", "abstract", "version", "author", "is_original", "license", "repo_link"),
        *("requires", "lib_dir", "doc_dir", "main_module"),
    }
    assert (dist["version"], dist["license"], dist["is_original"]) == (VERSION, "mit", "yes")
    # opm takes all Lua files below lib_dir, and makes a / of each - in their names.
    assert (LUA / dist["lib_dir"]).resolve() == LUA
    assert not [file for file in FILES if "-" in file]
    assert (LUA / dist["doc_dir"]).is_dir()
    assert (LUA / "README.md").exists()  # opm wants one
    main_module = LUA / dist["main_module"]
    assert main_module.is_file()
    # It takes the first thing that looks like one for the version of the main module.
    assert not re.search(r"\b(?:_?VERSION|version)\s*=\s*.*\d", main_module.read_text())


def test_all_modules_are_in_the_folder_throttle() -> None:
    assert FILES
    assert all(file.startswith("throttle/") for file in FILES)
