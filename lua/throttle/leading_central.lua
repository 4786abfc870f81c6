--- Whether a central that leads is heard, as a node sees it.
--
-- It is away when its connection is lost, when it has answered no ask for a while, or has sent
-- nothing for two slots. Times are seconds of the node's monotonic clock.

local huge, max, min = math.huge, math.max, math.min

local SILENT_SECONDS = 0.25
local SILENT_SLOTS = 2.25 -- without a message: a central that leads sends one in each slot
local FIRST_INTERVAL = 0.05 -- between two asks, until the central says otherwise

local leading_central = { SILENT_SLOTS = SILENT_SLOTS }
leading_central.__index = leading_central

--- It counts as heard at the start, unless `alone_since` is 0 or more.
function leading_central.new(slot_seconds, now, alone_since)
    return setmetatable({
        alone_since = alone_since, -- below 0: it is heard
        heard_at = now,
        interval = FIRST_INTERVAL, -- that a node leaves between two asks
        newest_epoch = -1, -- of its newest Quota
        newest_time = -huge,
        unanswered_since = nil, -- the first ask since it was heard
        unanswered = {}, -- the users that all asks since then are for: user_key -> {service, user}
        asked_at = -huge, -- the last ask
        answered_ask = -huge, -- the last one before it was heard
        silent_after = SILENT_SLOTS * slot_seconds,
    }, leading_central)
end

function leading_central:is_heard()
    return self.alone_since < 0
end

--- It has sent a message as the leader of something.
function leading_central:hear(now)
    self.heard_at = now
    if next(self.unanswered) then
        self.answered_ask = self.asked_at
        self.unanswered = {}
    end
    self.unanswered_since = nil
    self.alone_since = -1
end

--- It is asked for credit of these users, which it must answer.
function leading_central:ask(now, users)
    for key, user in pairs(users) do
        self.unanswered[key] = user
    end
    self.asked_at = now
    if not self.unanswered_since and next(self.unanswered) then
        self.unanswered_since = now
    end
end

--- Move the users, all or of a service, that it was asked for and will not answer any more to `asking`.
function leading_central:move_unanswered(asking, service)
    for key, user in pairs(self.unanswered) do
        if not service or user.service == service then
            asking[key] = user
            self.unanswered[key] = nil
        end
    end
end

--- It is away: since the first ask that it has not answered, or else `since`.
--
-- That ask may be the second one, when the answer to the first was still to come.
function leading_central:go_away(since, retry_seconds)
    local unanswered = self.unanswered_since
    if unanswered then
        since = unanswered
        if unanswered - self.answered_ask <= retry_seconds + self.interval then
            since = min(since, max(self.heard_at, self.answered_ask))
        end
    end
    self.alone_since = since
end

--- When to take it that it is away, if nothing is heard until then; infinite: it is.
function leading_central:silent_at(retry_seconds)
    if not self:is_heard() then
        return huge
    end
    local silent = self.heard_at + self.silent_after
    if not self.unanswered_since then
        return silent
    end
    return min(silent, self.unanswered_since + max(SILENT_SECONDS, retry_seconds))
end

return leading_central
