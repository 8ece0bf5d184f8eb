"""The laws of object storage, by subject. `tidemill.testing.objects_conformance` gathers them."""
