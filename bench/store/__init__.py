"""`python -m bench.store`: what the port costs, what group commit gives, how fast a leader is replaced."""
