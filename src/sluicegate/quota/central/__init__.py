"""The central as a server: sockets, tokens, a state file and an HTTP API around a `CentralState`.

net/       connections: HTTP until the upgrade, then a websocket and its session
http/      the HTTP API and the metrics
sources/   where the limits come from, and how they are kept in sync
classic/   the protocol of the original system
scheduler  the periodic tasks: assigning, writing the state, reading the limits
server     serves all of them on one port; `Central` is the server for programs and the CLI
"""
