"""Turn values into bytes, and store and transfer them: pickles, signatures, shared memory, objects."""
