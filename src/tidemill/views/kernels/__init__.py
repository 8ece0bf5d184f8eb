"""Kernels: compute operators over Arrow tables and traces, without Spark."""
