"""The HTTP side of a central: the API, the metrics and their description."""
