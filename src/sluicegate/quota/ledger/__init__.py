"""What a central knows, without I/O: buckets, demand, and what each node is assigned."""
