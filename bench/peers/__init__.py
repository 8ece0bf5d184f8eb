"""What we compare ourselves with: one file each, run in a process of its own, with its best idiom."""
