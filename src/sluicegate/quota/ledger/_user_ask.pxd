from sluicegate.quota.ledger._account cimport Account
from sluicegate.quota.ledger._service_ledger cimport ServiceLedger

cdef double hear(
    ServiceLedger ledger,
    Account account,
    int node,
    double time,
    bint is_newest,
    user_ask,
    double *costs,
    bint *knows_costs,
) except? -2.0
