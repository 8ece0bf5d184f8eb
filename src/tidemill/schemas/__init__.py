"""Schemas: columns and their types, a parser for schema texts, conversion to and from Arrow."""
