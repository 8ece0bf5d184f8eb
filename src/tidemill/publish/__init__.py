"""Publication: the one transaction that everything else hangs on, and the attempts that lead to it."""
