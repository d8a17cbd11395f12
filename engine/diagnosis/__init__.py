"""Why an engine failed, or runs badly: what its log, its machine and its answers show, the cause, and the way out."""
