-- LuaRocks: `luarocks make` in this folder. The test of the packages compares the list with the files.
rockspec_format = "3.0"
package = "sluicegate-throttle"
version = "0.1.0-1"
source = {
    url = "git+https://sluicegate.invalid/sluicegate.git", -- not published yet
    tag = "v0.1.0",
    dir = "sluicegate/lua",
}
description = {
    summary = "Keeps the users of an nginx inside limits that hold for a whole fleet",
    detailed = "The end node of Sluicegate for nginx with Lua, and OpenResty.",
    license = "MIT",
}
dependencies = {
    "lua == 5.1", -- as LuaJIT, with the module of nginx and lua-resty-core, which no rock has
}
build = {
    type = "builtin",
    modules = {
        ["throttle.accounts"] = "throttle/accounts.lua",
        ["throttle.admission"] = "throttle/admission.lua",
        ["throttle.classic"] = "throttle/classic.lua",
        ["throttle.collector"] = "throttle/collector.lua",
        ["throttle.communicate"] = "throttle/communicate.lua",
        ["throttle.credit"] = "throttle/credit.lua",
        ["throttle.fast_path"] = "throttle/fast_path.lua",
        ["throttle.header"] = "throttle/header.lua",
        ["throttle.json"] = "throttle/json.lua",
        ["throttle.layout"] = "throttle/layout.lua",
        ["throttle.leading_central"] = "throttle/leading_central.lua",
        ["throttle.link"] = "throttle/link.lua",
        ["throttle.memory"] = "throttle/memory.lua",
        ["throttle.node"] = "throttle/node.lua",
        ["throttle.options"] = "throttle/options.lua",
        ["throttle.protocol"] = "throttle/protocol.lua",
        ["throttle.reporter"] = "throttle/reporter.lua",
        ["throttle.schedule"] = "throttle/schedule.lua",
        ["throttle.slot_clock"] = "throttle/slot_clock.lua",
        ["throttle.stable_hash"] = "throttle/stable_hash.lua",
        ["throttle.usage_keys"] = "throttle/usage_keys.lua",
        ["throttle.user_table"] = "throttle/user_table.lua",
        ["throttle.warm_up"] = "throttle/warm_up.lua",
        ["throttle.websocket"] = "throttle/websocket.lua",
    },
}
