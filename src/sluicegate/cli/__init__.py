"""The `sluicegate` command: `main` finds the command, and each command has a file of its own."""
