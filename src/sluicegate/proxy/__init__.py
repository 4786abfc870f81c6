"""`sluicegate node`: an end node as a reverse proxy, for services that are not Python."""
