"""Demonstrations: what Sluicegate does, to be watched in a terminal.

`sluicegate demo limits` is a model that runs in virtual time and knows no terminal, and a thin
shell that moves it in step with real time and draws it. Without a terminal it runs at once.

`sluicegate demo` is the real thing, as processes: a central, three end nodes of two workers each,
one of them an nginx where one with Lua is installed, and the traffic of six users. From the inside
to the outside:

    traffic          what a user sends to a node, as data, and when it begins
    quota_users      the users: their traffic, their limits, what must hold for each
    verdict          the counts of each second, and whether the limits held
    shared_counts    the counts of one worker, in a file that the demo reads
    pauses           for how long the machine held up a process
    nginx_client     asks nginx whether a request is admitted, over HTTP
    worker           the program of a worker: its part of the traffic, through an end node
    metered          the program of the central: the real command, and its pauses
    die_with_parent  runs a command that is killed when its parent dies
    process          a process of a fleet: start, stop, log; the system tests use it, too
    nginx_config     the configuration of an nginx that is an end node
    nginx            that nginx, as a process of the fleet
    fleet            all processes of the demo, started again when they die, and their folder
    status_poller    what the central's API says of itself and its limits
    quota            the demo: all of these in real time
    quota_screen     the terminal

`sluicegate demo pacing` is a pacing cluster, as processes over a Redis of its own:

    embedded_redis   a Redis in the demo's folder
    pacing_node      a node: its traffic, its limiter, what it has counted; the program of a process
    pacing_fleet     Redis and the nodes, as processes or as threads
    pacing           the demo: moves the traffic, kills a node, adds up, judges
    pacing_screen    the terminal

`sluicegate demo dispatch` is a queue under overload, over such a Redis:

    dispatch_handler the handler of the workers, and how long it takes
    dispatch_fleet   Redis and two workers, as processes
    dispatch_tally   what came of the calls, and the verdict
    dispatch         the demo: the clients, all of these in real time
    dispatch_screen  the terminal
"""
