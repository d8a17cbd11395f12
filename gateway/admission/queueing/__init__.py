"""The queue: the order of requests, their waits, and what a refused client is told."""
