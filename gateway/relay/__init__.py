"""The data plane: reads a request, has it counted and admitted, streams the answer, reports the end once."""
