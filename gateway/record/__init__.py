"""The core's events and decisions on file: written while it runs, and run again later, on any machine."""
