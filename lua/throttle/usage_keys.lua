--- The usage of each slot in a lua_shared_dict, for those who want to look in from outside.
--
--     consumption/<slot>/<service>/<user>/<resource>   what was consumed in the slot
--     rejection/<slot>/<service>/<user>/<resource>     how many requests were refused
--
-- The worker that reports writes the keys when a slot has ended, and they expire after some slots.
-- Nothing depends on them. When the dict is full the rest of a slot is left out, and that is logged:
-- no key is pushed out for another. In names `%` and `/` are written as %25 and %2F, so that each key
-- is of one user.

local KEPT_SLOTS = 10
local LOG_SECONDS = 60

local usage_keys = {}
usage_keys.__index = usage_keys

function usage_keys.new(dict, slot_seconds)
    return setmetatable({ dict = dict, seconds = KEPT_SLOTS * slot_seconds, logged_at = -LOG_SECONDS }, usage_keys)
end

local function escape(name)
    return (name:gsub("[%%/]", { ["%"] = "%25", ["/"] = "%2F" }))
end

--- Write the usage of the slot that was collected last.
function usage_keys:publish(reporter)
    local dict, seconds = self.dict, self.seconds
    local is_full = false
    dict:flush_expired(1000)
    reporter:each_usage(function(slot, service, user, resource, consumed, rejected)
        if is_full then
            return
        end
        local name = ("/%d/%s/%s/%s"):format(slot, escape(service), escape(user), escape(resource))
        local written, err = true, nil
        if consumed > 0 then
            written, err = dict:safe_set("consumption" .. name, consumed, seconds)
        end
        if written and rejected > 0 then
            written, err = dict:safe_set("rejection" .. name, rejected, seconds)
        end
        if not written then
            is_full = true
            local now = ngx.now()
            if now - self.logged_at >= LOG_SECONDS then
                self.logged_at = now
                ngx.log(ngx.WARN, "throttle: the lua_shared_dict does not show the usage of all users: ", err)
            end
        end
    end)
end

return usage_keys
