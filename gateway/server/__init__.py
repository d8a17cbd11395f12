"""HTTP/1.1 towards clients: sockets, TLS, framing, limits; calls one ASGI application."""
