# SPDX-License-Identifier: Apache-2.0
"""Draw from a ``dpftrl_fast.ChaCha`` in Cython, without the GIL and without Python objects.

This module compiles as C or as C++ and needs only NumPy's headers: the cipher is called through
``dpftrl_fast._chacha``, so nothing of ours has to be linked.

    # cython: language_level=3
    from dpftrl_fast._chacha cimport ChaCha, chacha_next_double, chacha_stream_t

    def mean(ChaCha generator, Py_ssize_t n):
        cdef chacha_stream_t *stream = &generator.stream
        cdef double total = 0
        cdef Py_ssize_t i
        with generator.lock, nogil:
            for i in range(n):
                total += chacha_next_double(stream)
        return total / n

A stream belongs to its generator: hold the generator's lock while drawing, and never copy the
struct (two copies would give the same words).
"""

from libc.stdint cimport uint32_t, uint64_t
from numpy.random cimport BitGenerator

cdef enum:
    CHACHA_BUFFER_BLOCKS = 32
    CHACHA_BUFFER_WORDS = 512

ctypedef struct chacha_stream_t:
    uint32_t next_word    # first unused word of the buffer, or CHACHA_BUFFER_WORDS
    int rounds
    uint64_t block_low    # number of the buffer's first block: block_low + 2^64 block_high,
    uint64_t block_high   # a multiple of CHACHA_BUFFER_BLOCKS below 2^112
    uint32_t key[8]
    uint32_t buffer[CHACHA_BUFFER_WORDS]

# Where the buffer has too few words left: for the inline functions below.
cdef uint32_t chacha_refill_uint32(chacha_stream_t *stream) noexcept nogil
cdef uint64_t chacha_refill_uint64(chacha_stream_t *stream) noexcept nogil

# The next n words of the stream, several times faster than n calls of chacha_next_uint32.
cdef void chacha_fill_uint32(chacha_stream_t *stream, size_t n, uint32_t *out) noexcept nogil


cdef inline uint32_t chacha_next_uint32(chacha_stream_t *stream) noexcept nogil:
    cdef uint32_t i = stream.next_word
    if i < CHACHA_BUFFER_WORDS:
        stream.next_word = i + 1
        return stream.buffer[i]
    return chacha_refill_uint32(stream)


cdef inline uint64_t chacha_next_uint64(chacha_stream_t *stream) noexcept nogil:
    cdef uint32_t i = stream.next_word
    if i + 1 < CHACHA_BUFFER_WORDS:
        stream.next_word = i + 2
        return stream.buffer[i] | (<uint64_t> stream.buffer[i + 1] << 32)
    return chacha_refill_uint64(stream)


cdef inline double chacha_next_double(chacha_stream_t *stream) noexcept nogil:
    return <double> (chacha_next_uint64(stream) >> 11) * (1.0 / 9007199254740992.0)


cdef class ChaCha(BitGenerator):
    cdef chacha_stream_t stream
