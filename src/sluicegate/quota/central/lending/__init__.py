"""Leadership per service: the leader lends services to the other centrals.

The elected leader has the clock, and at first all services. It divides them among the centrals that
are there, and lends each of the others its part, for as long as its own lease lasts. Whoever leads
a service answers its asks and sends its quotas; all centrals go on booking all reports.

What holds at any time:

- **One leader for each service.** A loan ends with the lease of the leader that made it, by the
  same clocks. A service passes to another central only when the one before has let go of it, or
  its loan has run out.
- **In one epoch a service has one leader.** When services move, the leader goes on in a higher
  epoch, which fences the quotas of the division before, wherever they still are.

Alternatives: an election for each service needs as many leases, epochs and clocks as there are
services, and puts them wherever a candidate was first. A rule that all centrals compute by
themselves needs them to agree on who is there, which is the election again.
"""
