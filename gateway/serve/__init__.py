"""`kvgate serve`: the start, reload and end of its engines and its gateway."""
