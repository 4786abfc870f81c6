--- What is where in the memory that all workers of a host share.
--
-- A user is a record: its name, a `throttle_user`, and up to MAX_CELLS cells, one for each resource
-- that the user has consumed or is limited in. What holds for all users is in the header. Amounts
-- are doubles in the resource's unit, shares are units per slot, times are seconds of the host's
-- monotonic clock.
--
-- A change of this file needs another VERSION: workers that find memory of another one make it anew.

local ffi = require "ffi"

local layout = {
    VERSION = 1,
    MAX_CELLS = 8,
    MAX_SERVICES = 64,
    MAX_RESOURCES = 256,
    MAX_USER_BYTES = 160,
    MAX_NAME_BYTES = 200,
    ASK_RING_SIZE = 1024,
    BOOT_ID_BYTES = 40,
    LOCKS = 64, -- of records, by their bucket
    EXTRA_LOCKS = 3,
    POOL_LOCK = 64, -- of the records that are free
    NAMES_LOCK = 65,
    ASKS_LOCK = 66,
    REQUEST_STARTS = 0, -- the resource that counts the beginnings of requests; in no report
}

ffi.cdef [[
typedef struct { uint64_t words[8]; } throttle_mutex; /* room for that of any C library */

typedef struct {
    uint32_t window;          /* in which the record was last refreshed */
    uint32_t changed_window;  /* in which its totals or reservations last changed */
    uint32_t generation;      /* of what was published, when the state was looked up */
    uint32_t period;          /* in which the record was last refreshed: of `reservation_seconds` */
    double free_version;      /* of the limits under which the user is free; 0: none */
    double requested_at;      /* the last request, admitted or not */
    double asked_at;          /* when the reporter was last told to ask for credit */
    double empty_until;       /* until then the leader has nothing for the user */
    double accrued_at;        /* up to which the allowance has accrued */
    float rate;               /* requests per second, lately */
    float running;            /* running requests that began in this window */
    float old_running;        /* and before it */
    float guess_told;         /* the most, in the last ask, that is reserved of a resource of unknown cost */
    uint8_t state;
    uint8_t is_known;         /* a leader has told which resources are limited */
    uint8_t is_asking;        /* the leader has not answered yet */
    uint8_t may_float;        /* one request may pass ahead of its grant */
    uint8_t lacks_cell;       /* a share has no cell: no request may pass */
    uint8_t has_waiting;      /* a request waits for the answer to the next ask */
    uint8_t asked_waiting;    /* one waited for the answer to the last ask */
    uint8_t empty_for_all;    /* `empty_until` was said though a request waited */
} throttle_user;

typedef struct {
    double consumed;          /* since the record was made */
    double consumed_before;   /* the same at the beginning of the window */
    double settled;           /* the part of it that a leader has acknowledged */
    double granted;           /* the highest total that a leader has told */
    double returned;          /* of it, what was given back */
    float reserved;           /* by requests without a ticket that began in this window */
    float old_reserved;       /* and before it */
    float ticketed_even;      /* by requests with a ticket, in periods of an even number */
    float ticketed_odd;
    uint32_t rejected;
    uint32_t requests;
    uint32_t rejected_before;
    uint32_t requests_before;
    float allowance;          /* what may be spent without a grant */
    float share;              /* units per slot, at which the allowance accrues */
    float mean;               /* of what requests cost; while unknown, 1 */
    float peak;               /* the mean, but at least what one that was short has cost lately */
    float least;              /* the cheapest request that credit is asked for; 0: a mean one */
    uint8_t resource;
    uint8_t flags;
    uint8_t is_limited;       /* by what holds now */
    uint8_t unused;
} throttle_cell;

typedef struct {
    int32_t count;            /* of cells */
    int32_t unused;
    throttle_user user;
    throttle_cell cells[8];
} throttle_account;

typedef struct {
    volatile uint32_t serial; /* another one for each user that the record is given to; odd: it has one */
    int32_t next;             /* in its bucket, or of those that are free; -1: none */
    uint32_t bucket;
    uint8_t service;
    uint8_t is_overflow;      /* shared by users that have found no room */
    uint8_t name_size;
    uint8_t unused;
    char name[160];
    throttle_account account;
} throttle_record;

typedef struct {
    int32_t record;           /* that is being changed; -1: none */
    int32_t unused;
    throttle_account before;
} throttle_journal;

typedef struct {
    int32_t count;
    uint8_t resource[8];
    double share[8];
} throttle_defaults;

typedef struct {
    double version;           /* of the limits; 0: no leader has told it */
    double begin;             /* of the window */
    double finish;            /* when the next one begins */
    double slot;
    double epoch;             /* the highest seen; -1: none */
    uint32_t window;
    uint32_t generation;
    uint32_t slot_frozen;     /* windows go on, but the slot does not: the leader's clock went back */
    uint32_t nodes;
    double lead_seconds;      /* how long credit takes to come: a round trip and a frame interval */
    double wait_seconds;      /* how long a request may wait for an answer of the leader */
    double retry_seconds;     /* after which an ask is made again */
    uint8_t has_newcomers[64];
    throttle_defaults newcomers[64];
    double alone_since[64];   /* the service's leader is not heard since then; below 0: it is */
} throttle_published;

typedef struct { uint8_t size; char bytes[207]; } throttle_name;

typedef struct { uint8_t service; uint8_t size; char name[160]; } throttle_ask;

typedef struct {
    char magic[8];
    uint32_t version;
    uint32_t max_records;
    double boot;              /* the life of the counters */
    double slot_seconds;
    char boot_id[40];         /* of the machine: its monotonic clock begins again with each boot */
    char node_id[208];
    uint32_t seed;            /* of the hash of names */
    int32_t free;             /* the first free record; -1: none */
    uint32_t used;            /* records that were ever used: those behind have no memory yet */
    volatile uint32_t users;  /* records in use */
    double committed;         /* bytes of records that have memory behind them */
    double sequence;          /* of the last report that was made */
    double settled_slot;      /* up to which a leader has acknowledged everything; -1: none has */
    volatile uint32_t publications; /* how many; the last one is published[publications % 2] */
    volatile uint32_t answers;      /* Quotas that were written into records */
    volatile uint32_t services;
    volatile uint32_t resources;
    volatile uint32_t asks_made;
    uint32_t asks_taken;
    throttle_published published[2];
    throttle_name service_names[64];
    throttle_name resource_names[256];
    throttle_ask asks[1024];
    throttle_mutex locks[67];
    throttle_journal journals[64];
} throttle_header;
]]

assert(ffi.sizeof("throttle_user") == 80 and ffi.sizeof("throttle_cell") == 96)

return layout
