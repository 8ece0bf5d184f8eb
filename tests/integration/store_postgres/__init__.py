"""Tests of the PostgreSQL store; those that all stores share are in tests/conformance."""
