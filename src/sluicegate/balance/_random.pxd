# cython: language_level=3
"""Random numbers for picks: SplitMix64, whose state is one word. Not for secrets."""

from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #include <stdint.h>

    static inline uint64_t sg_mix(uint64_t x) {
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
        return x ^ (x >> 31);
    }
    static inline uint64_t sg_random(uint64_t *state) {
        return sg_mix(*state += 0x9E3779B97F4A7C15ULL);
    }
    /* From 0 to bound - 1. The bias is below bound / 2^64. */
    static inline uint64_t sg_random_below(uint64_t *state, uint64_t bound) {
        return (uint64_t)(((__uint128_t)sg_random(state) * bound) >> 64);
    }
    """
    uint64_t mix "sg_mix"(uint64_t x) noexcept nogil
    uint64_t next_random "sg_random"(uint64_t* state) noexcept nogil
    uint64_t random_below "sg_random_below"(uint64_t* state, uint64_t bound) noexcept nogil
