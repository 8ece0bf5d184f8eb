"""Values as bytes: pickles, signatures, segments in shared memory, objects and transfers between hosts."""
