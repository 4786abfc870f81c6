"""The protocol of the original system, for nodes and monitors that still speak it."""
