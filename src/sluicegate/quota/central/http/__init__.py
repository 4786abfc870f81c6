"""What a central answers over HTTP: the API, the metrics and their description."""
