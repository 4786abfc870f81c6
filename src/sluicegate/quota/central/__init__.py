"""The central as a running server: sockets, tokens, a state file and an HTTP API around a
`CentralState`.

    front_door   every connection comes in here: HTTP, until it asks for a websocket
    node_socket  a websocket; `session` and `classic_session` are what is spoken over it
    switchboard  who is connected, and who hears what
    pulse        what goes by the clock: assigning, writing the state, reading the limits
    server       puts them behind one port; `Central` is the server for programs and the CLI
"""
