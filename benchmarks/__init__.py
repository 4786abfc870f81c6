"""Ours and the peers, side by side. `python -m benchmarks [part]`, or `make bench ONLY=part`."""
