"""Load tests: what kvgate does to an overload, and what it costs. They speak HTTP and know nothing of its insides."""
