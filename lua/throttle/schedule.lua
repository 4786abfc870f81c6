--- When to look at which user: a binary heap by time, in which each user is at most once.

local huge = math.huge

local schedule = {}
schedule.__index = schedule

function schedule.new()
    return setmetatable({ heap = {}, size = 0, keys = {} }, schedule)
end

--- Add a user with a key of its own, unless it is there already.
function schedule:add(time, key, service, user)
    if self.keys[key] then
        return
    end
    self.keys[key] = true
    local heap, place = self.heap, self.size + 1
    self.size = place
    while place > 1 do
        local parent = (place - place % 2) / 2
        if heap[parent].time <= time then
            break
        end
        heap[place] = heap[parent]
        place = parent
    end
    heap[place] = { time = time, key = key, service = service, user = user }
end

--- The earliest time; infinite if there is none.
function schedule:first()
    return self.size > 0 and self.heap[1].time or huge
end

--- Take out the earliest: a table with time, service and user.
function schedule:pop()
    local heap, size = self.heap, self.size
    local first, last = heap[1], heap[size]
    heap[size] = nil
    size = size - 1
    self.size = size
    self.keys[first.key] = nil
    if size == 0 then
        return first
    end
    local place = 1
    while 2 * place <= size do
        local child = 2 * place
        if child < size and heap[child + 1].time < heap[child].time then
            child = child + 1
        end
        if heap[child].time >= last.time then
            break
        end
        heap[place] = heap[child]
        place = child
    end
    heap[place] = last
    return first
end

return schedule
