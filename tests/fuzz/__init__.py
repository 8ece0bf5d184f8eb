"""Fuzzing: damaged and hostile input for every entry of Tidemill, `python -m tests.fuzz TARGET`.

A target generates a case from a random source, passes it to a public entry, and checks the outcome: the input
is accepted, or quarantined with a reason, or refused with a `TidemillError` that has a hint. Any other
exception is a failure. So is a crash of the process, a case that does not end, and a record that is neither
stored nor refused. The seed of a case alone decides its content. Cases run in forked processes, so a crash is
reported like any other failure, with its seed and a smaller case that fails in the same way.
"""
