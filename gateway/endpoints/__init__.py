"""The watch over each endpoint: its health, its metrics, its identity, by the kind of its engine."""
