"""Mutants: plausible mistakes in the protocols, each a small edit of the source that a test must notice.

`python -m tests.mutants` applies each mutant to a copy of the repository and runs the tests that the tables
(`*.toml`) name for it. A mutant that survives shows that a rule is not tested. `docs/reference/mutants.md`
lists all mutants. `tests.simulation.mutants` has others, which replace whole functions.
"""

from tests.mutants.mutant import Mutant, read_tables

MUTANTS: tuple[Mutant, ...] = read_tables()
