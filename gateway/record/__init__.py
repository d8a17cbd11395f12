"""The core's events and decisions on file: recorded while it runs, replayed later on any machine."""
