# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3, binding=True, boundscheck=False, wraparound=False
# cython: freethreading_compatible=True
"""ChaCha as a NumPy bit generator.

The stream is one sequence of 32-bit words, and a generator is a key, a number of rounds and the
position of its next word: no half of a 64-bit draw is ever kept aside. Blocks are made 32 at a
time, on a multiple of 32, so that the 32-bit block counter of the cipher never wraps inside a
buffer and a position always has the same buffer.
"""

import threading

import numpy as np
from numpy.random.bit_generator import ISeedSequence, ISpawnableSeedSequence

from dpftrl_fast.noise.keys import KeySequence, key_of_seed_sequence

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from numpy.random cimport BitGenerator

__all__ = ["ChaCha"]


cdef extern from "dpftrl/noise/stream.hpp" namespace "dpftrl" nogil:
    cdef enum class Purpose(uint8_t):
        bit_generator

    cdef enum class Kind(uint8_t):
        words

    cdef cppclass Key:
        uint32_t words[8]

    cdef cppclass NodeStream:
        Key key
        int rounds
        Purpose purpose
        uint32_t tree
        uint64_t node

    cdef cppclass Counter:
        uint32_t words[4]

    int kStreamVersion
    Counter make_counter(const NodeStream &, Kind, uint32_t) noexcept


cdef extern from "dpftrl/noise/chacha.hpp" namespace "dpftrl" nogil:
    void chacha_keystream(const uint32_t *, const uint32_t *, int, size_t, uint32_t *) noexcept


# NumPy's base class is compiled into the layout of ours: with another NumPy whose base class is
# larger, its fields and ours would share memory.
if BitGenerator.__basicsize__ != sizeof(BitGenerator):
    raise ImportError(
        f"dpftrl_fast was built for a NumPy whose BitGenerator has {sizeof(BitGenerator)} bytes, "
        f"but that of NumPy {np.__version__} has {BitGenerator.__basicsize__}: rebuild dpftrl_fast"
    )

# A position counts words: 16 a block, 2^80 blocks a jump, 2^32 jumps.
_BLOCK_BITS = 4
_JUMP_BITS = _BLOCK_BITS + 80
_POSITION_BITS = _JUMP_BITS + 32


# ------------------------------------------------------------------------------------ the stream


cdef void make_blocks(const chacha_stream_t *stream, uint32_t *out) noexcept nogil:
    """Write the CHACHA_BUFFER_BLOCKS blocks from stream.block_low, stream.block_high on."""
    cdef NodeStream node
    memcpy(node.key.words, stream.key, sizeof(stream.key))
    node.rounds = stream.rounds
    node.purpose = Purpose.bit_generator
    node.tree = <uint32_t> (stream.block_high >> 16)
    node.node = (stream.block_low >> 32) | ((stream.block_high & <uint64_t> 0xFFFF) << 32)
    cdef Counter counter = make_counter(node, Kind.words, <uint32_t> stream.block_low)
    chacha_keystream(stream.key, counter.words, stream.rounds, CHACHA_BUFFER_BLOCKS, out)


cdef void next_blocks(chacha_stream_t *stream, uint32_t *out) noexcept nogil:
    stream.block_low += CHACHA_BUFFER_BLOCKS
    if stream.block_low == 0:
        stream.block_high = (stream.block_high + 1) & <uint64_t> 0xFFFFFFFFFFFF
    make_blocks(stream, out)


cdef uint32_t chacha_refill_uint32(chacha_stream_t *stream) noexcept nogil:
    next_blocks(stream, stream.buffer)
    stream.next_word = 1
    return stream.buffer[0]


cdef uint64_t chacha_refill_uint64(chacha_stream_t *stream) noexcept nogil:
    cdef uint64_t low = chacha_next_uint32(stream)
    return low | (<uint64_t> chacha_next_uint32(stream) << 32)


cdef void chacha_fill_uint32(chacha_stream_t *stream, size_t n, uint32_t *out) noexcept nogil:
    cdef size_t take
    while n > 0:
        take = CHACHA_BUFFER_WORDS - stream.next_word
        if take > 0:
            if take > n:
                take = n
            memcpy(out, stream.buffer + stream.next_word, take * sizeof(uint32_t))
            stream.next_word += <uint32_t> take
        elif n >= CHACHA_BUFFER_WORDS:
            take = CHACHA_BUFFER_WORDS
            next_blocks(stream, out)
        else:
            next_blocks(stream, stream.buffer)
            stream.next_word = 0
        out += take
        n -= take


cdef uint64_t bitgen_uint64(void *state) noexcept nogil:
    return chacha_next_uint64(<chacha_stream_t *> state)


cdef uint32_t bitgen_uint32(void *state) noexcept nogil:
    return chacha_next_uint32(<chacha_stream_t *> state)


cdef double bitgen_double(void *state) noexcept nogil:
    return chacha_next_double(<chacha_stream_t *> state)


cdef object get_position(const chacha_stream_t *stream):
    block = stream.block_low | (int(stream.block_high) << 64)
    return ((block << _BLOCK_BITS) + stream.next_word) % (1 << _POSITION_BITS)


cdef void set_position(chacha_stream_t *stream, object position):
    """Move to a position in [0, 2^116); the caller has checked it."""
    word = position % CHACHA_BUFFER_WORDS
    block = (position - word) >> _BLOCK_BITS
    stream.block_low = block & 0xFFFFFFFFFFFFFFFF
    stream.block_high = block >> 64
    stream.next_word = word
    make_blocks(stream, stream.buffer)


cdef void restart(chacha_stream_t *stream, bytes key, int rounds, object position):
    """Take a key of 32 bytes, a number of rounds and a position; the caller has checked them."""
    cdef const uint8_t *octets = key
    cdef int i
    for i in range(8):
        stream.key[i] = (
            octets[4 * i]
            | (<uint32_t> octets[4 * i + 1] << 8)
            | (<uint32_t> octets[4 * i + 2] << 16)
            | (<uint32_t> octets[4 * i + 3] << 24)
        )
    stream.rounds = rounds
    set_position(stream, position)


# --------------------------------------------------------------------------- checking what comes in


def _integer(name, value):
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    return int(value)


def _checked_rounds(value):
    rounds = _integer("rounds", value)
    if rounds not in (8, 12, 20):
        raise ValueError(f"rounds must be 8, 12 or 20, got {rounds}")
    return rounds


def _checked_position(name, position):
    if not 0 <= position < 1 << _POSITION_BITS:
        raise ValueError(
            f"{name} must lead to a position in [0, 2^{_POSITION_BITS}) words, got one outside"
        )
    return position


def _checked_key(value):
    key = np.asarray(value)
    if key.dtype.kind not in "iu":
        raise TypeError(f"the key of a state must hold integers, got {key.dtype}")
    if key.shape != (8,):
        raise ValueError(f"the key of a state must have shape (8,), got {key.shape}")
    if not (int(key.min()) >= 0 and int(key.max()) < 1 << 32):
        raise ValueError("the key of a state must hold words in [0, 2^32), got one outside")
    return key.astype("<u4").tobytes()


def _item(mapping, name):
    if name not in mapping:
        raise ValueError(
            f"the state of a ChaCha must have an entry {name!r}, got {sorted(map(str, mapping))}"
        )
    return mapping[name]


# ----------------------------------------------------------------------------- the bit generator


cdef class ChaCha(BitGenerator):
    """ChaCha(seed=None, *, rounds=12)
--

    The ChaCha cipher as a NumPy bit generator.

    Made for `numpy.random.Generator`, which gives it every distribution of NumPy:
    ``numpy.random.Generator(ChaCha())``. Unlike NumPy's own bit generators its output cannot be
    told from random, nor continued or traced back, without the key (as far as is known).

    Parameters
    ----------
    seed : None, int, bytes or numpy.random.bit_generator.ISeedSequence, optional
        None takes a 256-bit key from the operating system. An integer >= 0 or bytes are hashed into
        a key; a small integer can be guessed, so it is for tests. A `numpy.random.SeedSequence`
        gives no more entropy than it holds (128 bits by default).
    rounds : {8, 12, 20}, optional
        Rounds of the cipher. 20 is RFC 8439's, 12 the default.

    Attributes
    ----------
    rounds : int
        The number of rounds.
    seed_seq : KeySequence or numpy.random.bit_generator.ISeedSequence
        Where the key came from, and where `spawn` takes the keys of children from. It is secret.
    lock : threading.RLock
        To be held while drawing through `capsule`, `ctypes`, `cffi` or Cython.

    Raises
    ------
    TypeError
        If the seed or the rounds are of another type: a float, a bool, a list.
    ValueError
        If the seed is negative or the rounds are not 8, 12 or 20.

    Notes
    -----
    **Stream.** A sequence of 2^116 words of 32 bits, of which the position counts those used. A
    32-bit draw is the next word; a 64-bit draw is the next two, low word first; a double is the
    high 53 bits of a 64-bit draw times 2^-53. Nothing is kept between draws: a 64-bit draw after
    one 32-bit draw takes words 1 and 2. `random_raw` gives 64-bit draws. Word p is word p mod 16 of
    block B = p div 16, whose state words 12 to 15 are, with domain 0xFF04 (purpose 255, kind 4)::

        w12 = B mod 2^32
        w13 = (B div 2^32) mod 2^32
        w14 = (B div 2^64) mod 2^16 + 2^16 ((B div 2^96) mod 2^16)
        w15 = (B div 2^80) mod 2^16 + 2^16 * 0xFF04

    that is, block index, node and tree of docs/guarantees/stream.md as the low, the middle and the high part
    of one 112-bit block number. The domain keeps these words apart from those of a `TreeNoise` with
    the same seed. After the last word comes word 0.

    **Many streams.** `spawn` gives generators with keys of their own. `jumped` gives generators of
    the same key, 2^80 blocks (2^83 draws of 64 bits) further on; there are 2^32 such parts.

    **Secrets.** `state`, pickles and copies hold the key. Who has it can make every word again. A
    copy, or the child of a fork, goes on with the same words as the original.

    Examples
    --------
    >>> import numpy as np
    >>> from dpftrl_fast import ChaCha
    >>> np.random.Generator(ChaCha(7)).random() == np.random.Generator(ChaCha(7)).random()
    True

    References
    ----------
    D. J. Bernstein, "ChaCha, a variant of Salsa20", 2008. Y. Nir, A. Langley, RFC 8439, 2018.
    """

    def __init__(self, seed=None, *, rounds=12):
        rounds = _checked_rounds(rounds)
        if not isinstance(seed, ISeedSequence):
            seed = KeySequence(seed)
        key = key_of_seed_sequence(seed)
        BitGenerator.__init__(self, seed)
        self.lock = threading.RLock()
        self._bitgen.state = <void *> &self.stream
        self._bitgen.next_uint64 = &bitgen_uint64
        self._bitgen.next_uint32 = &bitgen_uint32
        self._bitgen.next_double = &bitgen_double
        self._bitgen.next_raw = &bitgen_uint64
        restart(&self.stream, key, rounds, 0)

    def __repr__(self):
        return f"<{type(self).__name__} rounds={self.stream.rounds} at {id(self):#x}>"

    @property
    def rounds(self):
        """The number of rounds of the cipher."""
        return self.stream.rounds

    @property
    def state(self):
        """The whole state, as a dict. It holds the key, so it is secret.

        ``{"bit_generator": "ChaCha", "stream_version": 2, "rounds": ..., "state": {"key": eight
        uint32 words, "position": words used so far}}``. Setting it takes over rounds, key and
        position, or, if something does not fit, changes nothing and raises TypeError or ValueError.
        `seed_seq` is no part of it: pickle keeps that too, with the number of children made.
        """
        with self.lock:
            return {
                "bit_generator": "ChaCha",
                "stream_version": kStreamVersion,
                "rounds": self.stream.rounds,
                "state": {
                    "key": np.array([word for word in self.stream.key], dtype=np.uint32),
                    "position": get_position(&self.stream),
                },
            }

    @state.setter
    def state(self, value):
        if not isinstance(value, dict):
            raise TypeError(f"state must be a dict, got {type(value).__name__}")
        name = _item(value, "bit_generator")
        if name != "ChaCha":
            raise ValueError(f"state must be one of the bit generator 'ChaCha', got {name!r}")
        version = _integer("stream_version", _item(value, "stream_version"))
        if version != kStreamVersion:
            raise ValueError(f"stream_version must be {kStreamVersion}, got {version}")
        rounds = _checked_rounds(_item(value, "rounds"))
        inner = _item(value, "state")
        if not isinstance(inner, dict):
            raise TypeError(f"the entry 'state' must be a dict, got {type(inner).__name__}")
        key = _checked_key(_item(inner, "key"))
        position = _checked_position("position", _integer("position", _item(inner, "position")))
        with self.lock:
            restart(&self.stream, key, rounds, position)

    def advance(self, delta):
        """advance(delta)

        Move on as if ``delta`` draws of 64 bits had been made (back, if it is negative).

        Parameters
        ----------
        delta : int
            Number of draws of 64 bits, two words each.

        Returns
        -------
        ChaCha
            This generator.

        Raises
        ------
        ValueError
            If the position would leave [0, 2^116) words; then nothing is changed.
        """
        delta = _integer("delta", delta)
        with self.lock:
            position = get_position(&self.stream) + 2 * delta
            set_position(&self.stream, _checked_position("delta", position))
        return self

    def jumped(self, jumps=1):
        """jumped(jumps=1)

        Return a new generator of the same key, ``jumps`` times 2^80 blocks further on.

        It shares `seed_seq` with this one, so that children of the two never coincide.

        Parameters
        ----------
        jumps : int, optional
            Number of jumps of 2^83 draws of 64 bits, at least 0 (a copy).

        Returns
        -------
        ChaCha
            The new generator.

        Raises
        ------
        ValueError
            If ``jumps`` is negative or leads beyond the last of the 2^32 jumps.
        """
        cdef ChaCha other
        jumps = _integer("jumps", jumps)
        if jumps < 0:
            raise ValueError(f"jumps must be >= 0, got {jumps}")
        other = type(self)(self._seed_seq, rounds=self.rounds)
        with self.lock:
            position = get_position(&self.stream) + (jumps << _JUMP_BITS)
            _checked_position("jumps", position)
            other.stream = self.stream
            set_position(&other.stream, position)
        return other

    def spawn(self, n_children):
        """spawn(n_children)

        Return new generators with keys derived from this one's seed sequence, with the same rounds.

        Parameters
        ----------
        n_children : int
            How many, at least 0.

        Returns
        -------
        list of ChaCha
            The children. Their streams do not depend on what has been drawn here.

        Raises
        ------
        TypeError
            If the seed sequence that this generator was made from cannot spawn.
        """
        if not isinstance(self._seed_seq, ISpawnableSeedSequence):
            raise TypeError("The underlying SeedSequence does not implement spawning.")
        return [type(self)(child, rounds=self.rounds) for child in self._seed_seq.spawn(n_children)]


def _keystream(key, counter, rounds, n_blocks):
    """Return blocks of the core's keystream for any counter, shape (n_blocks, 16): for tests."""
    cdef uint32_t[::1] key_words = np.frombuffer(key, dtype="<u4").astype(np.uint32)
    cdef uint32_t[::1] counter_words = np.array(counter, dtype=np.uint32)
    if key_words.shape[0] != 8 or counter_words.shape[0] != 4:
        raise ValueError("key must have 32 bytes and counter 4 words")
    out = np.empty((n_blocks, 16), dtype=np.uint32)
    cdef uint32_t[:, ::1] words = out
    if n_blocks > 0:
        rounds = _checked_rounds(rounds)
        chacha_keystream(&key_words[0], &counter_words[0], rounds, n_blocks, &words[0, 0])
    return out
