"""Runs the parts that are named, or all; exits 1 when a goal is missed."""

import importlib
import sys

from benchmarks.harness import report

PARTS = [
    "limits",
    "shared",
    "redis",
    "integrations",
    "quota",
    "node",
    "central",
    "pacing",
    "dispatch",
    "nginx",
    "balance",
    "cache",
]


def main(arguments: list[str]) -> int:
    names = [name for argument in arguments for name in argument.split(",")]
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        sys.stderr.write(f"unknown part {unknown[0]!r}; the parts are {', '.join(PARTS)}\n")
        return 2
    missed = 0
    for name in names or PARTS:
        part = importlib.import_module(f"benchmarks.{name}")
        print(f"measuring {name} ...", file=sys.stderr)
        rows = part.rows()
        print(report(name, rows, part.NOTES))
        missed += sum(row.met is False for row in rows)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
