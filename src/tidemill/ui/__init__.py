"""The page: one server with the screens for operators, the HTTP API, the metrics and the health check."""
