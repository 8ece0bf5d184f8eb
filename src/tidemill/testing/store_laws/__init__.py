"""The laws of the store's port, a group to a file; `tidemill.testing.StoreConformance` is all of them."""
