"""Tests of object storage, by subject; `tidemill.testing.objects_conformance` collects them."""
