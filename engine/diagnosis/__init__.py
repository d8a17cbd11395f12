"""The diagnosis of an engine that failed or runs badly: its log, machine and answers lead to cause and remedy."""
