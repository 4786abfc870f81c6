# cython: language_level=3, cdivision=True
"""`Sketch`: how often a key was seen lately, about, in 4 bits.

A count-min sketch with four rows. The four counters of a key are in one block of eight words,
which is one cache line: each row has two words of 16 counters there. A key's frequency is the
smallest of its counters: other keys can only make it look larger. When `sample_limit` keys
were added, all counters are halved, so what was popular is forgotten.
"""

from libc.stdint cimport uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

cdef extern from "<stdlib.h>" nogil:
    void* aligned_alloc(size_t alignment, size_t size)

cdef enum:
    WORDS_PER_BLOCK = 8
    ROWS = 4

cdef struct Sketch:
    uint64_t* words
    uint64_t word_count    # a power of two
    uint64_t sample_limit
    uint64_t samples


cdef inline uint64_t* allocate_words(uint64_t count) noexcept:
    return <uint64_t*>aligned_alloc(8 * WORDS_PER_BLOCK, 8 * count)


cdef inline bint sketch_start(Sketch* sketch, uint64_t word_count) noexcept:
    """All zero, with a power of two of words. Without memory for them, the words that are there
    are used again; False when there are none.
    """
    cdef uint64_t* words = allocate_words(word_count)
    if words != NULL:
        free(sketch.words)
        sketch.words = words
        sketch.word_count = word_count
    elif sketch.words == NULL:
        return False
    memset(sketch.words, 0, 8 * sketch.word_count)
    sketch.samples = 0
    return True


cdef inline bint sketch_double(Sketch* sketch) noexcept:
    """Twice the size, nothing forgotten: both halves know what the whole did."""
    cdef uint64_t* words = allocate_words(2 * sketch.word_count)
    if words == NULL:
        return False
    memcpy(words, sketch.words, 8 * sketch.word_count)
    memcpy(words + sketch.word_count, sketch.words, 8 * sketch.word_count)
    free(sketch.words)
    sketch.words = words
    sketch.word_count *= 2
    return True


cdef inline uint64_t mix(uint64_t x) noexcept:
    """The finalizer of SplitMix64: each bit of the hash changes half of the result."""
    x = (x ^ (x >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * <uint64_t>0x94D049BB133111EB
    return x ^ (x >> 31)


cdef inline uint64_t* block_of(Sketch* sketch, uint64_t mixed) noexcept:
    return sketch.words + ((mixed * WORDS_PER_BLOCK) & (sketch.word_count - 1))


cdef inline int sketch_frequency(Sketch* sketch, Py_hash_t key_hash) noexcept:
    cdef uint64_t mixed = mix(<uint64_t>key_hash)
    cdef uint64_t* block = block_of(sketch, mixed)
    cdef uint64_t counter
    cdef int row, least = 15
    for row in range(ROWS):
        counter = mixed >> (32 + 5 * row)  # 1 bit for the word, 4 for the counter in it
        least = min(least, <int>((block[2 * row + (counter & 1)] >> (4 * ((counter >> 1) & 15))) & 15))
    return least


cdef inline void sketch_add(Sketch* sketch, Py_hash_t key_hash) noexcept:
    cdef uint64_t mixed = mix(<uint64_t>key_hash)
    cdef uint64_t* block = block_of(sketch, mixed)
    cdef uint64_t* word
    cdef uint64_t counter
    cdef int row, position
    for row in range(ROWS):
        counter = mixed >> (32 + 5 * row)
        word = &block[2 * row + (counter & 1)]
        position = 4 * ((counter >> 1) & 15)
        if (word[0] >> position) & 15 != 15:
            word[0] += <uint64_t>1 << position
    sketch.samples += 1
    if sketch.samples >= sketch.sample_limit:
        sketch_halve(sketch)


cdef inline void sketch_halve(Sketch* sketch) noexcept:
    cdef uint64_t i
    for i in range(sketch.word_count):
        sketch.words[i] = (sketch.words[i] >> 1) & <uint64_t>0x7777777777777777  # none takes a bit of its neighbour
    sketch.samples //= 2
