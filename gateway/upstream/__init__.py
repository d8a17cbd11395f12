"""HTTP/1.1 towards endpoints: the connections that requests and kvgate's own questions share."""
