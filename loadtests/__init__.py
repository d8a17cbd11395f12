"""Load tests: kvgate's effect on an overload, and its cost. They speak HTTP and know nothing of its internals."""
