# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What a node asks and tells of one user (`UserAsk`): checked, and put into its cells."""

from libc.math cimport INFINITY, floor

from sluicegate.errors import ProtocolError
from sluicegate.quota.ledger._account cimport Account
from sluicegate.quota.ledger._bucket cimport (
    FORGET_SLOTS,
    Bucket,
    NodeCell,
    cost_of_request,
    note_active,
    position_of,
    refill,
    spill,
)
from sluicegate.quota.ledger._credit cimport tell, unused_of
from sluicegate.quota.ledger._floats cimport spare_of
from sluicegate.quota.ledger._service_ledger cimport ServiceLedger, milliseconds

__all__ = []

cdef extern from *:
    """
    /* Requests of a user can wait if one has waited within so many seconds. */
    #define WAITS_SECONDS 60.0
    """
    const double WAITS_SECONDS

cdef double MAX_AMOUNT = 1e18  # no total is larger

cdef struct ToldCredit:  # what a node tells of one resource
    bint is_told  # or it says nothing of it
    double granted, returned, used
    double cost  # of a request; 0 or less: the node does not know it


cdef double hear(
    ServiceLedger ledger,
    Account account,
    int node,
    double time,
    bint is_newest,
    user_ask,
    double *costs,
    bint *knows_costs,
) except? -2.0:
    """Bring a node's cells up to what it tells; the requests it still wants, -1: it was given them.

    `costs` gets what a request costs of each resource; `knows_costs` whether the node has told it of all.
    """
    cdef double requests = _read_requests(account.user, user_ask), known = INFINITY
    cdef bint is_active = requests > 0.0
    cdef dict resources = user_ask[1]
    cdef ToldCredit told
    cdef Bucket *bucket
    cdef NodeCell *cell
    cdef int r
    knows_costs[0] = True
    if user_ask[2]:
        account.waited = time
    for r in range(account.count):
        bucket = &ledger.buckets[account.numbers[r]]
        _read_credit(account.user, account.resources[r], resources.get(account.resources[r]), &told)
        costs[r] = told.cost if told.cost > 0.0 else cost_of_request(bucket)
        knows_costs[0] = knows_costs[0] and told.cost > 0.0
        if bucket.kept > 0.0 or time / ledger.slot_seconds < ledger.nodes.warmup_until:
            ledger._keep_for_unknown_nodes(bucket, time / ledger.slot_seconds)
        refill(bucket, time / ledger.slot_seconds)
        cell = ledger._cell_of(bucket, node)
        is_active = is_active or told.used > cell.used + 1e-9 * told.used
        _tell_cell(ledger, bucket, cell, time, is_newest, not resources, &told)
        bucket.spare = spare_of(bucket, costs[r], time - account.waited < WAITS_SECONDS, ledger.slot_seconds)
        # Credit that comes back unused had its place filled meanwhile: it is not there twice.
        spill(bucket)
        if costs[r] > 0.0 and (told.is_told or not resources):
            known = min(known, _unknown_credit(cell, &told) / costs[r])
    if is_active:
        _note_active(ledger, account, node, time)
    if requests == 0.0:
        return 0.0
    if known < INFINITY:
        requests -= max(0.0, floor(known + 1e-6))
    return requests if requests >= 1.0 else -1.0


cdef int _tell_cell(
    ServiceLedger ledger,
    Bucket *bucket,
    NodeCell *cell,
    double time,
    bint is_newest,
    bint is_forgotten,
    const ToldCredit *told,
) noexcept:
    """Bring a cell up to what its node tells. `is_forgotten`: the node knows nothing of the user."""
    cdef long long slot = <long long> floor(time / ledger.slot_seconds)
    if cell.last_ask == 0 and cell.last_report == 0:
        cell.demand = INFINITY
        cell.safe = <float> (bucket.rate / ledger.nodes.estimated_count(slot))
    # A node that knows nothing of the user any more has forgotten its totals, too.
    if told.is_told or (is_forgotten and ledger._idle_slots(cell) >= FORGET_SLOTS):
        ledger.hear_asking(bucket, cell)
        tell(bucket, cell, told.granted, told.returned, told.used, is_newest)
    cell.last_ask = ledger._slot_offset(slot)
    return 0


cdef double _unknown_credit(const NodeCell *cell, const ToldCredit *told) noexcept:
    """What a node has been granted and does not know of yet."""
    return unused_of(cell) - max(0.0, told.granted - told.returned - told.used)


cdef int _note_active(ServiceLedger ledger, Account account, int node, double time) noexcept:
    """A node has traffic of a user."""
    cdef Bucket *bucket
    cdef int r
    account.note_traffic(node, time)
    for r in range(account.count):
        bucket = &ledger.buckets[account.numbers[r]]
        note_active(bucket, &bucket.cells[position_of(bucket, node)], milliseconds(time))
    return 0


cdef double _read_requests(str user, user_ask) except -1.0:
    """How many requests' credit a node asks for; its resources are a dict."""
    cdef double requests
    cdef dict resources
    try:
        asked, resources, _ = user_ask
        requests = asked
    except (TypeError, ValueError):
        requests = -1.0
        resources = None
    if not 0.0 <= requests <= MAX_AMOUNT or resources is None:
        raise ProtocolError(
            f"invalid ask for user {user!r}: got {user_ask!r}, expected a number of requests "
            f"from 0 up, and resources"
        )
    return requests


cdef int _read_credit(str user, str resource, credit, ToldCredit *told) except -1:
    """Read what a node tells of a resource; None: nothing."""
    told.is_told = credit is not None
    told.granted = told.returned = told.used = 0.0
    told.cost = -1.0
    if credit is None:
        return 0
    try:
        told.granted, told.returned, told.used, told.cost = credit
    except (TypeError, ValueError):
        told.granted = -1.0
    if not (
        0.0 <= told.granted <= MAX_AMOUNT
        and 0.0 <= told.returned <= MAX_AMOUNT
        and 0.0 <= told.used <= MAX_AMOUNT
        and 0.0 <= told.cost <= MAX_AMOUNT
    ):
        raise ProtocolError(
            f"invalid credit for user {user!r} and resource {resource!r}: "
            f"got {credit!r}, expected amounts from 0 to {MAX_AMOUNT:g}"
        )
    return 0
