# cython: language_level=3
"""Atomic words, memory fences and a keyed hash, for memory that other processes change."""

from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    static inline uint64_t sg_load(uint64_t *word) {
        return __atomic_load_n(word, __ATOMIC_ACQUIRE);
    }
    static inline void sg_store(uint64_t *word, uint64_t value) {
        __atomic_store_n(word, value, __ATOMIC_RELEASE);
    }
    static inline uint64_t sg_add(uint64_t *word, uint64_t amount) {
        return __atomic_fetch_add(word, amount, __ATOMIC_ACQ_REL);
    }
    static inline int sg_swap(uint64_t *word, uint64_t old, uint64_t value) {
        return __atomic_compare_exchange_n(word, &old, value, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    }
    /* Reads before it are done before reads after it. */
    static inline void sg_after_reads(void) { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
    /* Writes before it are seen before writes after it. */
    static inline void sg_before_writes(void) { __atomic_thread_fence(__ATOMIC_RELEASE); }

    static inline void sg_raise_double(double *word, double value) {
        uint64_t seen = __atomic_load_n((uint64_t *)word, __ATOMIC_ACQUIRE), wanted;
        double old;
        memcpy(&wanted, &value, 8);
        for (;;) {
            memcpy(&old, &seen, 8);
            if (!(value > old))
                return;
            if (__atomic_compare_exchange_n((uint64_t *)word, &seen, wanted, 0,
                                            __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
                return;
        }
    }

    static inline uint64_t sg_fold(uint64_t a, uint64_t b) {
        __uint128_t product = (__uint128_t)a * b;
        return (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    static inline uint64_t sg_eight(const char *bytes) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        return word;
    }
    static inline uint64_t sg_four(const char *bytes) {
        uint32_t word;
        memcpy(&word, bytes, 4);
        return word;
    }
    /* Folded products under a secret salt: nobody who lacks the salt can choose keys that collide. */
    static inline uint64_t sg_hash(const char *bytes, uint64_t size, uint64_t more, const uint64_t *salt) {
        uint64_t a, b, left = size;
        uint64_t hash = sg_fold(salt[0] ^ more, salt[1] ^ 0x9E3779B97F4A7C15ULL ^ size);
        while (left > 16) {
            hash = sg_fold(sg_eight(bytes) ^ salt[1], sg_eight(bytes + 8) ^ hash);
            bytes += 16;
            left -= 16;
        }
        if (left >= 8) {
            a = sg_eight(bytes);
            b = sg_eight(bytes + left - 8);
        } else if (left >= 4) {
            a = sg_four(bytes);
            b = sg_four(bytes + left - 4);
        } else if (left > 0) {
            a = ((uint64_t)(unsigned char)bytes[0] << 16)
                | ((uint64_t)(unsigned char)bytes[left >> 1] << 8)
                | (unsigned char)bytes[left - 1];
            b = 0;
        } else {
            a = b = 0;
        }
        return sg_fold(sg_fold(a ^ salt[2], b ^ hash), salt[3] ^ 0xD6E8FEB86659FD93ULL);
    }
    """
    uint64_t load "sg_load"(uint64_t* word) noexcept nogil
    void store "sg_store"(uint64_t* word, uint64_t value) noexcept nogil
    uint64_t add "sg_add"(uint64_t* word, uint64_t amount) noexcept nogil
    bint swap "sg_swap"(uint64_t* word, uint64_t old, uint64_t value) noexcept nogil
    void after_reads "sg_after_reads"() noexcept nogil
    void before_writes "sg_before_writes"() noexcept nogil
    void raise_double "sg_raise_double"(double* word, double value) noexcept nogil
    uint64_t salted_hash "sg_hash"(
        const char* data, uint64_t size, uint64_t more, const uint64_t* salt
    ) noexcept nogil
