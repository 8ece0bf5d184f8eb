"""Schemas: columns and their types as values, their text, their Arrow form, and the table of all types."""
