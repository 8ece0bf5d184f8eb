"""Publication: the transaction that makes lots visible, and the attempts that prepare it."""
