"""A certificate for 127.0.0.1 that signs itself."""

import subprocess
from pathlib import Path

from tests.harness.waits import PATIENCE

__all__ = ["make_certificate"]


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """The files of a new certificate and its key."""
    cert, key = folder / "c.crt", folder / "c.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
        timeout=PATIENCE,
    )
    return cert, key
