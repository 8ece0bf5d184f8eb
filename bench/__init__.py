"""One command per claim: `python -m bench.<name> [--json] [--quick]`. See bench/README.md."""
