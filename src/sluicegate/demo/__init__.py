"""Demonstrations: what Sluicegate does, to be watched in a terminal.

`sluicegate demo limits` is a model that runs in virtual time and knows no terminal, and a thin
shell that moves it in step with real time and draws it. Without a terminal it runs at once.

`sluicegate demo` is the real thing, as processes: a central, three end nodes of two workers each,
and the traffic of four users. From the inside to the outside:

    quota_users    who the users are, what they do, what must hold for each
    quota_record   what came of it in each second, and the verdict
    tally          the counts of one worker, in a file that the demo reads
    worker         a process: a part of the traffic, through an end node
    leash          a process ends with the one that started it
    fleet          all processes: started, started again, ended; their folder
    central_watch  what the central says of itself and its limits
    quota          the demo: all of these in real time
    quota_screen   the terminal
"""
