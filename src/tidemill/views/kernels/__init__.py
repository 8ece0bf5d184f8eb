"""Kernels: compute operators over Arrow tables and traces. No Spark here."""
