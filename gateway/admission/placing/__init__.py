"""The placing of a request: its record, the rules that hold it back, and the choice of its endpoint."""
