"""Compiles the core. Everything else about the package stands in pyproject.toml."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

COMPILER = (sysconfig.get_config_var("CC") or "cc").split()[0]


class BuildCore(build_ext):
    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def build_extensions(self) -> None:
        compiler = self.compiler.compiler_so[0] if self.compiler.compiler_so else COMPILER
        if shutil.which(compiler) is None:
            sys.exit(
                f"headgate: the C compiler {compiler!r} was not found; headgate's core is compiled "
                "when it is installed: install gcc (Debian: apt-get install gcc) and try again"
            )
        if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
            sys.exit(
                "headgate: the C headers of Python were not found; headgate's core is compiled "
                "when it is installed: install them (Debian: apt-get install python3-dev) and try "
                "again"
            )
        super().build_extensions()


def extension(source: Path) -> Extension:
    name = ".".join(source.relative_to("src").with_suffix("").parts)
    return Extension(name, [str(source)], extra_compile_args=["-O3"])


setup(
    ext_modules=cythonize(
        [extension(source) for source in sorted(Path("src").rglob("*.pyx"))],
        include_path=["src"],
    ),
    cmdclass={"build_ext": BuildCore},
)
