"""Programs of `benchmarks/dispatch.py`: a no-op task in each library, its worker and its client.

Each runs as a file in an environment of its own, so none imports the benchmarks. `PROGRAM worker`
serves until it is ended; `PROGRAM client` reads lines of two numbers, requests and how many in
flight, and answers each with a line of seconds and the median time of a request.
"""
