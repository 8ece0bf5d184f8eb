"""Ingest files that other programs wrote: good records become rows, bad ones go to quarantine."""
