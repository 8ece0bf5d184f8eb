"""Schemas: columns and their types, conversion from text and to Arrow, and the table of all types."""
