"""Report lines and shares as C arrays: no object per cell between wire, ledger and node."""
