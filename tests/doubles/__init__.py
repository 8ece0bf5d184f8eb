"""Doubles of servers that cannot run here. Each says what it does not prove."""
