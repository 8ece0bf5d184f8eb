"""What is PostgreSQL's own; the contract that all stores share is in tests/conformance."""
