--- The protocol of the original centrals, for a central that does not offer ours.
--
-- A report has what was used in one slot; its answer has, for the slot after the next, what each user
-- may use in that slot alone. Nothing in it is cumulative: a report that is lost is lost, and a share
-- that is not used lapses. This file has no I/O; docs/protocol.md, "The classic protocol".

local protocol = require "throttle.protocol"

-- Amounts of one kind in a report: a central takes 30,000 JSON objects, and each user is one or two.
local MAX_AMOUNTS = 14000

local classic = {}
classic.__index = classic

function classic.new()
    return setmetatable({ shares = {} }, classic) -- service -> slot -> user -> resource -> amount
end

local function add(counts, service, user, resource, amount)
    counts[service] = counts[service] or {}
    counts[service][user] = counts[service][user] or {}
    counts[service][user][resource] = amount
end

--- The report of the slot before `slot`, and how many amounts there was no room for. `each_usage` is
--- that of the reporter.
function classic.report(node_id, slot, each_usage)
    local consumption, rejection = {}, {}
    local consumed_count, rejected_count, left_out = 0, 0, 0
    each_usage(function(_, service, user, resource, consumed, rejected)
        if consumed > 0 and consumed_count < MAX_AMOUNTS then
            consumed_count = consumed_count + 1
            add(consumption, service, user, resource, consumed)
        elseif consumed > 0 then
            left_out = left_out + 1
        end
        if rejected > 0 and rejected_count < MAX_AMOUNTS then
            rejected_count = rejected_count + 1
            add(rejection, service, user, resource, rejected)
        end
    end)
    return protocol.encode_classic_report(node_id, slot, consumption, rejection), left_out
end

--- The answer to a report. True, or nil and what is wrong.
function classic:receive(text, pause)
    local answer, err = protocol.decode_classic_quota(text, pause)
    if not answer then
        return nil, err
    end
    for service, slots in pairs(answer) do
        self.shares[service] = self.shares[service] or {}
        for slot, users in pairs(slots) do
            self.shares[service][slot] = users
        end
    end
    return true
end

--- The shares of a slot that has begun: service -> user -> resource -> amount; nil if there are none.
--- They are returned once, and those of earlier slots are forgotten.
function classic:take(slot)
    local found
    for service, slots in pairs(self.shares) do
        for each, users in pairs(slots) do
            if each == slot then
                found = found or {}
                found[service] = users
            end
            if each <= slot or each > slot + 10 then
                slots[each] = nil
            end
        end
    end
    return found
end

return classic
