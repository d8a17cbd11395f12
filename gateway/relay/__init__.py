"""The data plane: has a request counted and admitted, streams the answer, reports the end once."""
