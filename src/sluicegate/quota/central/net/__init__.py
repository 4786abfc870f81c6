"""The connections of a central: sockets, handshake, sessions, and their bounds."""
