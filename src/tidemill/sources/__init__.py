"""Sources: what arrives from outside becomes lots, each file and message once (LOT-35, CLU-19 to CLU-22)."""
