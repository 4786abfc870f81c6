--- Memory that all workers of a host share: a mapped file, and the locks in it.
--
-- The file is in /dev/shm and belongs to the user of the workers (0600). It outlives workers and
-- reloads: new workers go on with the counts of those before them. It is as large as it may ever
-- become, but only what is committed has memory behind it, and memory is committed before it is
-- written to: a full /dev/shm is an error that can be met, where a page that cannot be had kills
-- the worker (SIGBUS).
--
-- Locks are robust mutexes of the C library. A lock is held for about a microsecond, never while a
-- request waits for anything. When a worker is killed while it holds one, the next one that locks
-- it is told, and undoes the change that was under way, which is in the journal of that lock. So a
-- record is never half changed.
--
-- A lua_shared_dict was turned down: it has no operation that compares several numbers and then
-- changes them, and three `get` and three `incr` for each request cost as much as all of this.

local ffi = require "ffi"
local layout = require "throttle.layout"

local C = ffi.C
local floor, max = math.floor, math.max

ffi.cdef [[
typedef struct { uint64_t words[8]; } throttle_mutex_attributes;
typedef struct { long seconds, nanoseconds; } throttle_time;

int pthread_mutexattr_init(throttle_mutex_attributes *);
int pthread_mutexattr_setpshared(throttle_mutex_attributes *, int);
int pthread_mutexattr_setrobust(throttle_mutex_attributes *, int);
int pthread_mutex_init(throttle_mutex *, const throttle_mutex_attributes *);
int pthread_mutex_trylock(throttle_mutex *);
int pthread_mutex_timedlock(throttle_mutex *, const throttle_time *);
int pthread_mutex_unlock(throttle_mutex *);
int pthread_mutex_consistent(throttle_mutex *);

int clock_gettime(int clock, throttle_time *);
int open(const char *path, int flags, ...);
int close(int descriptor);
int unlink(const char *path);
int flock(int descriptor, int operation);
int ftruncate(int descriptor, long size);
long lseek(int descriptor, long offset, int whence);
long readlink(const char *path, char *target, size_t size);
int posix_fallocate(int descriptor, long offset, long size);
void *mmap(void *address, size_t size, int protection, int flags, int descriptor, long offset);
int munmap(void *address, size_t size);
void *memset(void *target, int byte, size_t size);
unsigned int geteuid(void);
char *strerror(int number);
]]

local O_RDWR, O_CREAT, O_CLOEXEC = 2, 64, 0x80000
local MODE_OWNER_ONLY = 384 -- 0600
local LOCK_SH, LOCK_EX, LOCK_NB, LOCK_UN = 1, 2, 4, 8
local SEEK_END = 2
local PROT_READ_WRITE, MAP_SHARED, MAP_ANONYMOUS = 3, 1, 0x20
local EOWNERDEAD = 130
local CLOCK_REALTIME, CLOCK_MONOTONIC = 0, 1
-- Seconds for which a worker waits for another that was stopped while it held a lock.
local LOCK_SECONDS = 0.2
local COMMIT_BYTES = 1048576
local MAGIC = "SLUICEGT"

local memory = {}
memory.__index = memory

local CELL_BYTES = ffi.sizeof("throttle_cell")
local ACCOUNT_HEAD_BYTES = ffi.offsetof("throttle_account", "cells")
local time_buffer = ffi.new("throttle_time[1]")

local function read_clock(clock)
    C.clock_gettime(clock, time_buffer)
    return tonumber(time_buffer[0].seconds) + tonumber(time_buffer[0].nanoseconds) * 1e-9
end

--- Seconds of the host's monotonic clock, the same in all workers.
function memory.now()
    return read_clock(CLOCK_MONOTONIC)
end

--- Seconds of the wall clock.
function memory.wall()
    return read_clock(CLOCK_REALTIME)
end

--- The number of the user that the workers run as.
function memory.user_id()
    return C.geteuid()
end

local function fault(what, number)
    return what .. ": " .. ffi.string(C.strerror(number or ffi.errno()))
end

local function read_start(path, size)
    local file = io.open(path, "rb")
    if not file then
        return nil
    end
    local text = file:read(size)
    file:close()
    return text
end

--- Identifies the boot of the machine.
local function boot_id()
    local text = read_start("/proc/sys/kernel/random/boot_id", layout.BOOT_ID_BYTES - 1) or "unknown"
    return (text:gsub("%s", ""))
end

local function random_seed()
    local bytes = read_start("/dev/urandom", 4) or tostring(memory.wall()):reverse()
    local seed = 0
    for i = 1, 4 do
        seed = seed * 256 + bytes:byte(i)
    end
    return seed
end

-- The file

local function shape_of(max_records)
    local buckets = layout.LOCKS
    while buckets < max_records do
        buckets = buckets * 2
    end
    local heads = ffi.sizeof("throttle_header")
    local records = floor((heads + buckets * 4 + 4095) / 4096) * 4096
    return {
        max_records = max_records,
        buckets = buckets,
        heads = heads,
        records = records,
        size = records + max_records * ffi.sizeof("throttle_record"),
    }
end

local function map(descriptor, size)
    local flags = descriptor < 0 and MAP_SHARED + MAP_ANONYMOUS or MAP_SHARED
    local address = C.mmap(nil, size, PROT_READ_WRITE, flags, descriptor, 0)
    if ffi.cast("intptr_t", address) == -1 then
        return nil, fault("cannot map memory")
    end
    return ffi.cast("char *", address)
end

local function attach(self, descriptor, shape)
    local start, err = map(descriptor, shape.size)
    if not start then
        return nil, err
    end
    self.descriptor = descriptor
    self.shape = shape
    self.start = start
    self.header = ffi.cast("throttle_header *", start)
    self.heads = ffi.cast("int32_t *", start + shape.heads)
    self.records = ffi.cast("throttle_record *", start + shape.records)
    -- Made once: LuaJIT allocates memory for each reference that it has to keep.
    self.mutexes, self.journals, self.befores = {}, {}, {}
    for i = 0, layout.LOCKS + layout.EXTRA_LOCKS - 1 do
        self.mutexes[i] = self.header.locks + i
    end
    for i = 0, layout.LOCKS - 1 do
        self.journals[i] = self.header.journals[i]
        self.befores[i] = self.header.journals[i].before
    end
    return self
end

local function init_locks(header)
    local attributes = ffi.new("throttle_mutex_attributes[1]")
    C.pthread_mutexattr_init(attributes)
    C.pthread_mutexattr_setpshared(attributes, 1)
    C.pthread_mutexattr_setrobust(attributes, 1)
    for i = 0, layout.LOCKS + layout.EXTRA_LOCKS - 1 do
        C.pthread_mutex_init(header.locks + i, attributes)
    end
    for i = 0, layout.LOCKS - 1 do
        header.journals[i].record = -1
    end
end

--- The contents of a new file: no user, no reporter yet, slots by the wall clock.
local function fill(self, opts)
    local header = self.header
    header.version = layout.VERSION
    header.max_records = self.shape.max_records
    header.boot = max(1, floor(opts.wall * 1000))
    header.slot_seconds = opts.slot_seconds
    ffi.copy(header.boot_id, boot_id())
    ffi.copy(header.node_id, opts.node_id)
    header.seed = random_seed()
    header.free = -1
    header.settled_slot = -1
    header.resources = 1 -- number 0 is the beginnings of requests
    local published = header.published[0]
    published.slot = floor(opts.wall / opts.slot_seconds)
    published.begin = published.slot * opts.slot_seconds - (opts.wall - opts.now)
    published.finish = published.begin + opts.slot_seconds
    published.epoch = -1
    published.window = 2
    published.generation = 1
    published.retry_seconds = 0.3
    published.lead_seconds = 0.1
    for service = 0, layout.MAX_SERVICES - 1 do
        published.alone_since[service] = opts.now
    end
    ffi.fill(self.heads, self.shape.buckets * 4, 0xFF) -- -1: no record
    init_locks(header)
    ffi.copy(header.magic, MAGIC, #MAGIC) -- last: now it is complete
end

local function is_usable(self, opts)
    local header = self.header
    return header.slot_seconds == opts.slot_seconds
        and ffi.string(header.boot_id) == boot_id()
        and ffi.string(header.node_id) == opts.node_id
end

--- Map an existing file; nil if it cannot be used as it is.
local function attach_existing(self, descriptor, size, opts)
    if size < ffi.sizeof("throttle_header") then
        return nil
    end
    local start = map(descriptor, ffi.sizeof("throttle_header"))
    if not start then
        return nil
    end
    local header = ffi.cast("throttle_header *", start)
    local is_ours = ffi.string(header.magic, #MAGIC) == MAGIC and header.version == layout.VERSION
    local shape = is_ours and shape_of(header.max_records) or nil
    C.munmap(start, ffi.sizeof("throttle_header"))
    if not shape or shape.size ~= size or not attach(self, descriptor, shape) then
        return nil
    end
    if not is_usable(self, opts) then
        C.munmap(self.start, shape.size)
        return nil
    end
    return self
end

--- Whether an open file has still its name. Another worker may have replaced it while we waited for
--- its lock; then the file that has the name now must stay, or two workers would count in two files.
local function has_name(descriptor)
    local size = 4096
    local target = ffi.new("char[?]", size)
    size = tonumber(C.readlink("/proc/self/fd/" .. descriptor, target, size))
    return size <= 0 or not ffi.string(target, size):find(" %(deleted%)$")
end

local function create(self, descriptor, opts)
    local shape = shape_of(opts.max_records)
    if C.ftruncate(descriptor, shape.size) ~= 0 then
        return nil, fault("cannot resize " .. opts.path)
    end
    local failed = C.posix_fallocate(descriptor, 0, shape.records)
    if failed ~= 0 then
        return nil, fault("no memory for " .. opts.path, failed)
    end
    local attached, err = attach(self, descriptor, shape)
    if attached then
        fill(self, opts)
    end
    return attached, err
end

--- Open the memory of a node, or make it. nil and a message if that fails.
--
-- opts: path (nil: memory of this process alone), node_id, slot_seconds, max_records, now, wall.
-- One that exists keeps its number of records; one with other slots, of another node or of
-- another boot of the machine is replaced, and those that have it open go on with it.
function memory.open(opts)
    local self = setmetatable({ path = opts.path, clock = memory.now }, memory)
    if not opts.path then
        local attached, err = attach(self, -1, shape_of(opts.max_records))
        if attached then
            fill(self, opts)
        end
        return attached, err
    end
    for _ = 1, 10 do
        local descriptor = C.open(opts.path, O_RDWR + O_CREAT + O_CLOEXEC, ffi.cast("int", MODE_OWNER_ONLY))
        if descriptor < 0 then
            return nil, fault("cannot open " .. opts.path)
        end
        C.flock(descriptor, LOCK_EX) -- for the moment in which another worker makes it
        local attached, err
        if has_name(descriptor) then
            local size = tonumber(C.lseek(descriptor, 0, SEEK_END))
            if size > 0 then
                attached = attach_existing(self, descriptor, size, opts)
            else
                attached, err = create(self, descriptor, opts)
            end
            if not attached then
                C.unlink(opts.path)
            end
        end
        C.flock(descriptor, LOCK_UN)
        if attached then
            return self
        end
        C.close(descriptor)
        if err then
            return nil, err
        end
    end
    return nil, "cannot open " .. opts.path .. ": another process replaces it again and again"
end

function memory:close()
    C.munmap(self.start, self.shape.size)
    if self.descriptor >= 0 then
        C.close(self.descriptor)
    end
    self.header = nil
end

-- Locks

local function undo(self, number)
    local header = self.header
    if number >= layout.LOCKS then
        return
    end
    local journal = header.journals[number]
    if journal.record >= 0 and journal.record < header.max_records then
        ffi.copy(self.records[journal.record].account, journal.before, ffi.sizeof("throttle_account"))
    end
    journal.record = -1
end

local function lock_slowly(self, number)
    local mutex = self.mutexes[number]
    local deadline = ffi.new("throttle_time[1]")
    local at = memory.wall() + LOCK_SECONDS
    deadline[0].seconds = floor(at)
    deadline[0].nanoseconds = (at - floor(at)) * 1e9
    local failed = C.pthread_mutex_timedlock(mutex, deadline)
    if failed == EOWNERDEAD then
        undo(self, number)
        C.pthread_mutex_consistent(mutex)
        return true
    end
    return failed == 0
end

--- Lock; false if a worker that was stopped keeps it locked.
function memory:lock(number)
    local failed = C.pthread_mutex_trylock(self.mutexes[number])
    if failed == 0 then
        return true
    end
    if failed == EOWNERDEAD then
        undo(self, number)
        C.pthread_mutex_consistent(self.mutexes[number])
        return true
    end
    return lock_slowly(self, number)
end

function memory:unlock(number)
    C.pthread_mutex_unlock(self.mutexes[number])
end

--- Where a record is: references that are made once for a user and used at each of its requests.
function memory:place_of(index)
    local record = self.records[index]
    return {
        index = index,
        record = record,
        account = record.account,
        user = record.account.user,
        serial = record.serial, -- another one: the record has another user by now
        bucket = record.bucket,
        lock = record.bucket % layout.LOCKS,
        cells = false, -- of the fast path: references to the first ones, once it is prepared
        count = 0, -- and how many there were when it was last taken
    }
end

--- Copy the account of a record, whose bucket is locked.
function memory.get(place, account)
    local found = place.account
    account.count = found.count
    ffi.copy(account.data, found, ACCOUNT_HEAD_BYTES + account.count * CELL_BYTES)
end

--- Begin to change the account of a record, whose bucket is locked: a worker that is killed before
--- `end_change` has changed nothing.
function memory:begin_change(place)
    local account, lock = place.account, place.lock
    ffi.copy(self.befores[lock], account, ACCOUNT_HEAD_BYTES + account.count * CELL_BYTES)
    self.journals[lock].record = place.index
end

function memory:end_change(place)
    -- As a call, or a compiler might leave out the store of `begin_change`.
    C.memset(self.journals[place.lock], 0xFF, 4) -- record = -1: nothing is being changed
end

--- Write an account over that of a record, whose bucket is locked. It is whole, whoever is killed.
function memory:put(place, account)
    self:begin_change(place)
    account.data.count = account.count
    ffi.copy(place.account, account.data, ACCOUNT_HEAD_BYTES + account.count * CELL_BYTES)
    self:end_change(place)
end

-- Records

--- Have memory behind the records up to one of them; false if there is none to be had.
local function commit(self, index)
    local header, shape = self.header, self.shape
    local needed = (index + 1) * ffi.sizeof("throttle_record")
    while needed > header.committed and self.descriptor >= 0 do
        local size = math.min(COMMIT_BYTES, shape.size - shape.records - header.committed)
        if C.posix_fallocate(self.descriptor, shape.records + header.committed, size) ~= 0 then
            return false
        end
        header.committed = header.committed + size
    end
    return true
end

--- The index of a free record, which is now in use; nil when there is none, or fewer than `spared`
--- records that were never used would be left, with memory behind them.
function memory:allocate(spared)
    local header = self.header
    if not self:lock(layout.POOL_LOCK) then
        return nil
    end
    local index = header.free
    if index >= 0 then
        header.free = self.records[index].next
    elseif header.used + spared < header.max_records and commit(self, header.used + spared) then
        index = header.used
        header.used = index + 1
    end
    if index >= 0 then
        header.users = header.users + 1
    end
    self:unlock(layout.POOL_LOCK)
    return index >= 0 and index or nil
end

--- A record is free again. Its bucket is locked, and it is in it no more.
function memory:free(index)
    local header = self.header
    if self:lock(layout.POOL_LOCK) then
        self.records[index].next = header.free
        header.free = index
        header.users = header.users - 1
        self:unlock(layout.POOL_LOCK)
    end
end

-- Locks of the kernel on files. They end with the worker that holds them, whatever ends it.

--- Lock a file, alone or with others (`is_shared`), without waiting. A descriptor to hold; nil while
--- others exclude it, or nil and what is wrong.
function memory.try_file_lock(path, is_shared)
    local descriptor = C.open(path, O_RDWR + O_CREAT + O_CLOEXEC, ffi.cast("int", MODE_OWNER_ONLY))
    if descriptor < 0 then
        return nil, fault("cannot open " .. path)
    end
    if C.flock(descriptor, (is_shared and LOCK_SH or LOCK_EX) + LOCK_NB) ~= 0 then
        C.close(descriptor)
        return nil
    end
    return descriptor
end

--- Whether a file that is locked with others can be locked alone: nobody else has it.
function memory.is_last(descriptor)
    return C.flock(descriptor, LOCK_EX + LOCK_NB) == 0
end

function memory.release_file_lock(descriptor)
    C.close(descriptor)
end

return memory
