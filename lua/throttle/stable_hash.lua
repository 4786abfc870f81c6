--- A number in [0, 1) from names, the same in every process and language.
--
-- It spreads what many nodes would else do at the same moment: when they report, and when a share
-- of less than one request adds up to one. It is the first four bytes, big-endian, of the MD5 of the
-- names joined by a zero byte, over 2^32.

local stable_hash = {
    --- The MD5 of a string as 16 bytes: that of nginx, unless another one is set.
    md5 = ngx and ngx.md5_bin,
}

function stable_hash.fraction(...)
    local a, b, c, d = stable_hash.md5(table.concat({ ... }, "\0")):byte(1, 4)
    return (((a * 256 + b) * 256 + c) * 256 + d) / 4294967296
end

return stable_hash
