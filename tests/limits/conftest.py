"""Tests of shared memory have names and a folder of their own."""

from tests.harness.shared_memory import folder, name

__all__ = ["folder", "name"]
