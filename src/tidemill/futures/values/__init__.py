"""Values as bytes: pickles, signatures, shared memory, objects, and transfers between hosts."""
