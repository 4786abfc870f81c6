"""Set-up for all tests of dispatch."""

from tests.harness.patient_dispatch import patient_dispatch

__all__ = ["patient_dispatch"]
