"""Many nodes, one coordinator."""
