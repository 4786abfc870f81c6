# cython: language_level=3
"""Waits, without polling, until another process changes a word of shared memory (Linux futexes)."""

from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #include <limits.h>
    #include <linux/futex.h>
    #include <stdint.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>

    /* A futex has 32 bits: the lower half of the word, which changes with every step of a counter. */
    static inline uint32_t *sg_futex_of(uint64_t *word) {
        return (uint32_t *)word + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
    }
    /* Until `word` is no longer `seen`, or `seconds` are over. `is_awaited` is set meanwhile. */
    static inline void sg_futex_wait(uint64_t *word, uint64_t seen, uint64_t *is_awaited, double seconds) {
        struct timespec most = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
        __atomic_store_n(is_awaited, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, sg_futex_of(word), FUTEX_WAIT, (uint32_t)seen, &most, NULL, 0);
        __atomic_store_n(is_awaited, 0, __ATOMIC_SEQ_CST);
    }
    static inline void sg_futex_wake(uint64_t *word) {
        syscall(SYS_futex, sg_futex_of(word), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
    /* Wake whoever waits for a change of `word`, which was made just now; a system call only if there is one. */
    static inline void sg_futex_wake_if(uint64_t *word, uint64_t *is_awaited) {
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        if (__atomic_load_n(is_awaited, __ATOMIC_RELAXED))
            sg_futex_wake(word);
    }
    """
    void futex_wait "sg_futex_wait"(uint64_t* word, uint64_t seen, uint64_t* is_awaited, double seconds) noexcept nogil
    void futex_wake "sg_futex_wake"(uint64_t* word) noexcept nogil
    void futex_wake_if "sg_futex_wake_if"(uint64_t* word, uint64_t* is_awaited) noexcept nogil
