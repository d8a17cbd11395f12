"""The wire formats: the shapes of the APIs, SSE framing, error bodies. Pure: bytes in, values out."""
