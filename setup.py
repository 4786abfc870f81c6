"""Compiles the core. Everything else about the package stands in pyproject.toml."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# No fused multiply-add: the same answers on every processor. No symbols for a debugger, which
# Python's own flags ask for: they are seven eighths of the size and a fifth of the time.
FLAGS = ["-O3", "-ffp-contract=off", "-g0"]


class BuildCore(build_ext):
    """Looks for what a compiler needs before Cython goes to work, and says it in one sentence."""

    def finalize_options(self) -> None:
        compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
        if shutil.which(compiler) is None:
            sys.exit(
                f"sluicegate: the C compiler {compiler!r} was not found; the core is compiled "
                "when it is installed: install gcc (Debian: apt-get install gcc) and try again"
            )
        if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
            sys.exit(
                "sluicegate: the C headers of Python were not found; its core is compiled "
                "when it is installed: install them (Debian: apt-get install python3-dev) and try "
                "again"
            )
        self.distribution.ext_modules = cythonize(
            self.distribution.ext_modules,
            include_path=["src"],
            quiet=True,
            nthreads=os.cpu_count() or 1,
        )
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()


def extension(source: Path) -> Extension:
    name = ".".join(source.relative_to("src").with_suffix("").parts)
    return Extension(name, [str(source)], extra_compile_args=FLAGS)


# An editable install would compile everything again, in a folder of its own; `make` has done it in
# the place where it is imported from.
is_compiled = os.environ.get("SLUICEGATE_CORE_IS_COMPILED") == "1"
sources = [] if is_compiled else sorted(Path("src").rglob("*.pyx"))

setup(
    ext_modules=[extension(source) for source in sources],
    cmdclass={"build_ext": BuildCore},
)
