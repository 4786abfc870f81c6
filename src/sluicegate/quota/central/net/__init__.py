"""A central's connections: sockets, the handshake, sessions, and what bounds them."""
