"""The central: the server around the ledger, where its limits come from, and what it tells."""
