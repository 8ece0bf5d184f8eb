"""Tests of object storage, one file per subject; `tidemill.testing.objects_conformance` collects them."""
