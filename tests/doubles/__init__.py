"""Stand-ins for what cannot run here. Each says what it does not prove."""
