"""Durable futures: function calls that end with exactly one result, even if workers or clients die.

- `protocol`: states, stored rows, and a function of a transaction for every transition;
- `values`: pickles, signatures, and where large values are stored;
- `actors`: the handle of an actor, and the actors that a worker hosts;
- `worker`: the worker process, its children, and the loop that claims and completes futures;
- `client`: submit calls and wait for their results.

`home` defines the address of a cluster. Each package imports only the packages above it in this list.
"""
