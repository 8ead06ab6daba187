# SPDX-License-Identifier: Apache-2.0
"""The noise stream of `dpftrl_fast.reference`, against vectors and statements from elsewhere."""

from __future__ import annotations

import hashlib
import math
import re
from pathlib import Path

import mpmath
import numpy as np
import pytest

from dpftrl_fast.reference import (
    box_muller,
    box_muller_python,
    chacha_block,
    chacha_blocks,
    key_from_seed,
    normals,
    normals_python,
    stream,
    stream_python,
)

HEADER = Path(__file__).parents[2] / "csrc/include/dpftrl/noise/gaussian_coefficients.hpp"
DTYPES = ["float32", "float64"]
KEY = key_from_seed(b"tests of the stream")
NODE = {"tree": 1, "level": 2, "index": 3}


def bits(values: object, dtype: str) -> bytes:
    """The bytes of the values, so that -0.0 is not 0.0."""
    return np.asarray(values, dtype).tobytes()


# --- ChaCha ---------------------------------------------------------------------------------------

ZERO = bytes(32)
NONCE = (0x09000000, 0x4A000000, 0)
# (key, counter words, rounds, the 64 bytes of the block)
VECTORS = {
    "RFC 8439 2.3.2": (
        bytes(range(32)),
        (1, *NONCE),
        20,
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    "RFC 8439 A.1 #1": (
        ZERO,
        (0, 0, 0, 0),
        20,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    "RFC 8439 A.1 #2": (
        ZERO,
        (1, 0, 0, 0),
        20,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    "RFC 8439 A.1 #3": (
        bytes(31) + b"\x01",
        (1, 0, 0, 0),
        20,
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    "RFC 8439 A.1 #4": (
        b"\x00\xff" + bytes(30),
        (2, 0, 0, 0),
        20,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
    "RFC 8439 A.1 #5": (
        ZERO,
        (0, 0, 0, 0x02000000),
        20,
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
    ),
    "draft-strombergsen-chacha-test-vectors TC1, 8 rounds": (
        ZERO,
        (0, 0, 0, 0),
        8,
        "3e00ef2f895f40d67f5bb8e81f09a5a12c840ec3ce9a7f3b181be188ef711a1e"
        "984ce172b9216f419f445367456d5619314a42a3da86b001387bfdb80e0cfe42",
    ),
    "draft-strombergsen-chacha-test-vectors TC1, 12 rounds": (
        ZERO,
        (0, 0, 0, 0),
        12,
        "9bf49a6a0755f953811fce125f2683d50429c3bb49e074147e0089a52eae155f"
        "0564f879d27ae3c02ce82834acfa8c793a629f2ca0de6919610be82f411326be",
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_published_chacha_vectors(name: str) -> None:
    key, counter, rounds, block = VECTORS[name]
    expected = np.frombuffer(bytes.fromhex(block), "<u4")
    assert chacha_block(key, counter, rounds) == expected.tolist()
    many = chacha_blocks(key, np.array([5, counter[0]], np.uint32), counter[1:], rounds)
    np.testing.assert_array_equal(many[:, 1], expected)


@pytest.mark.parametrize("rounds", [8, 12, 20])
def test_blocks_are_the_single_block_many_times(rounds: int) -> None:
    rng = np.random.default_rng(8439)
    numbers = np.array([0, 1, 2**32 - 1, *rng.integers(0, 2**32, 20)], np.uint32)
    counter = tuple(rng.integers(0, 2**32, 3).tolist())
    many = chacha_blocks(KEY, numbers, counter, rounds)
    assert many.dtype == np.uint32
    for number, block in zip(numbers.tolist(), many.T, strict=True):
        assert chacha_block(KEY, (number, *counter), rounds) == block.tolist()


# --- keys and counters ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seed", "canonical"),
    [
        (0, b"i\x00"),
        (7, b"i\x07"),
        (255, b"i\xff"),
        (256, b"i\x01\x00"),
        (2**64, b"i\x01" + bytes(8)),
        (2**300 + 5, b"i\x10" + bytes(36) + b"\x05"),
        (np.uint64(256), b"i\x01\x00"),
        (b"", b"b"),
        (b"\x07", b"b\x07"),
        (b"i\x07", b"bi\x07"),
    ],
)
def test_key_of_a_seed(seed: int | bytes, canonical: bytes) -> None:
    message = b"dpftrl_fast/seed/v1" + b"\x00" + canonical
    assert key_from_seed(seed) == hashlib.sha256(message).digest()


@pytest.mark.parametrize("seed", [1.0, "1", None, True, np.float64(1), [1]])
def test_a_seed_is_an_integer_or_bytes(seed: object) -> None:
    with pytest.raises(TypeError, match="a seed that is not bytes must be an integer, got"):
        key_from_seed(seed)  # type: ignore[arg-type]


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="a seed that is not bytes must be >= 0, got -1"):
        key_from_seed(-1)


def test_node_ids_count_a_tree_in_order() -> None:
    height = 5
    visited: list[tuple[int, int]] = []

    def visit(level: int, index: int) -> None:
        if level:
            visit(level - 1, 2 * index)
        visited.append((level, index))
        if level:
            visit(level - 1, 2 * index + 1)

    visit(height, 0)
    ids = [stream.node_counter(0, 1, 0, *node)[0] for node in visited]
    assert ids == list(range(1, 2 ** (height + 1)))


def test_counter_words_are_one_packed_number() -> None:
    rng = np.random.default_rng(48)
    for _ in range(300):
        level = int(rng.integers(0, 48))
        index = int(rng.integers(0, 2 ** (47 - level)))
        tree = int(rng.integers(0, 2**32)) >> int(rng.integers(0, 32))
        purpose, kind = int(rng.integers(0, 256)), int(rng.integers(1, 5))
        w13, w14, w15 = stream.node_counter(purpose, kind, tree, level, index)
        packed = w13 | w14 << 32 | w15 << 64
        node = packed % 2**48
        assert node == 2**level + index * 2 ** (level + 1)
        assert (packed >> 48) % 2**16 * 2**16 + (packed >> 64) % 2**16 == tree
        assert packed >> 80 == kind + purpose * 2**8


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"level": -1}, IndexError, "level -1, index 3"),
        ({"index": -1}, IndexError, "level 2, index -1"),
        ({"level": 48, "index": 0}, IndexError, "level 48, index 0"),
        ({"level": 0, "index": 2**47}, IndexError, "level 0, index 140737488355328"),
        ({"tree": -1}, ValueError, "tree must be in"),
        ({"tree": 2**32}, ValueError, "got 4294967296"),
        ({"purpose": 256}, ValueError, "purpose must be in 0 .. 255, got 256"),
        ({"rounds": 7}, ValueError, "rounds must be 8, 12 or 20, got 7"),
        ({"dtype": "float16"}, ValueError, "dtype must be float32 or float64, got float16"),
        ({"start": -1}, ValueError, "start must be >= 0, got -1"),
        ({"size": 0}, ValueError, "size must be >= 1, got 0"),
        ({"size": 1.5}, TypeError, "size must be an integer, got float"),
        ({"start": 2**36 - 9}, ValueError, "coordinates must be below 68719476736"),
        ({"start": 2**35 - 9, "dtype": "float64"}, ValueError, "coordinates must be below 343597"),
    ],
)
@pytest.mark.parametrize("make", [normals, normals_python])
def test_bad_coordinates(make, change: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        make(KEY, **{**NODE, "start": 0, "size": 10, **change})


def test_bad_keys() -> None:
    for key in (bytes(31), bytes(33), "k" * 32, bytearray(32)):
        with pytest.raises(ValueError, match="key must be 32 bytes, got"):
            normals(key, **NODE, start=0, size=1)  # type: ignore[arg-type]


# --- words to a pair of normals -------------------------------------------------------------------


def test_coefficients_are_those_of_the_header() -> None:
    text = HEADER.read_text()
    for suffix, dtype in (("32", "float32"), ("64", "float64")):
        tables = [
            [
                float.fromhex(number.strip().removesuffix("f"))
                for number in re.search(rf"{name}{suffix}\[\d+\] = {{(.*?)}}", text, re.S)[1].split(
                    ","
                )
            ]
            for name in ("kLog", "kCos", "kSin")
        ]
        ln = re.search(rf"kTwoLn2F{suffix} = (\S+?)f?;", text)[1]
        expected = [*map(tuple, tables), (float.fromhex(ln),)]
        assert stream.POLYNOMIALS[np.dtype(dtype)] == expected
        for row in expected:  # a Python float in a float32 expression is then not rounded
            assert np.asarray(row, dtype).tolist() == list(row)


def words(dtype: str) -> tuple[list[int], list[int], list[int | None]]:
    """Words U, A and V: the extremes, each power of two and its neighbours, random ones."""
    rng = np.random.default_rng(2103)
    radii = [0, 1, 2, 3, 2**64 - 1, 2**64 - 2**32, 2**64 - 2**11, 2**63 - 1, 2**63, 2**63 + 1]
    radii += [(2**18 + k) << 32 for k in (-1, 0, 1)] + [(2**18 << 32) - 1, 2**18 << 32]
    radii += [2**i + k for i in range(1, 64) for k in (-1, 0, 1)]
    radii += [2**64 - (2**i + k) for i in range(1, 64) for k in (-1, 0, 1)]
    radii += [int(u) >> int(s) for u, s in rng.integers(0, [2**63, 60], (800, 2))]
    if dtype == "float32":  # without its low half, a radius word is zero there
        radii = [u if u >> 32 < 2**18 else u >> 32 << 32 for u in radii]
    width = 32 if dtype == "float32" else 64
    angles = [0, 2**width - 1, 2 ** (width - 3) - 1, 2 ** (width - 3), 2 ** (width - 1)]
    angles += [k << (width - 3) for k in range(8)]
    angles += [int(a) >> (64 - width) for a in rng.integers(0, 2**64, 60, dtype=np.uint64)]
    pairs = [
        (u, a) for n, u in enumerate(radii) for a in (0, 2**width - 1, angles[n % len(angles)])
    ]
    pairs += [(u, a) for u in radii[:4] for a in angles]
    if dtype == "float32":
        return [u for u, _ in pairs], [a for _, a in pairs], [None] * len(pairs)
    ends = [0, 2**64 - 1, *(2**i for i in range(64)), *(2**64 - 2**i for i in range(64))]
    ends += rng.integers(0, 2**64, 60, dtype=np.uint64).tolist()
    extended = [(u, a, ends[n % len(ends)]) for n, (u, a) in enumerate(pairs)]
    extended += [
        (u, angles[n % len(angles)], v)
        for n, v in enumerate(ends)
        for u in (0, 1, 2**50 - 1, 2**64 - 2**50, 2**64 - 2, 2**64 - 1)
    ]
    us, angle_words, vs = zip(*extended, strict=True)
    return list(us), list(angle_words), list(vs)


def value_of(u: int, v: int | None) -> mpmath.mpf:
    """The uniform number of a radius word, with its extension if it is rare."""
    if v is not None and not 2**18 <= u >> 32 < 2**32 - 2**18:
        return mpmath.mpf((u << 64 | v) or 0.5) / 2**128
    return mpmath.mpf(u or 0.5) / 2**64


def exact_pair(
    u: int, a: int, dtype: str, v: int | None = None
) -> tuple[mpmath.mpf, mpmath.mpf, mpmath.mpf]:
    """(first, second, radius) by mpmath: a point of the first octant, then reflected."""
    width, fraction = (32, 29) if dtype == "float32" else (64, 52)
    with mpmath.workdps(90):  # of 1 - 2^-128, 50 digits stay
        radius = mpmath.sqrt(-2 * mpmath.log(value_of(u, v)))
        in_octant = a % 2 ** (width - 3) >> (width - 3 - fraction)
        turn = mpmath.mpf(in_octant) / 2**fraction * mpmath.pi / 4
        pair = [radius * mpmath.cos(turn), radius * mpmath.sin(turn)]
        top = a >> (width - 3)
        if top % 2:
            pair.reverse()
        return pair[0] * (-1) ** (top // 4), pair[1] * (-1) ** (top // 2), radius


@pytest.mark.parametrize(("dtype", "relative"), [("float32", 2.5e-7), ("float64", 4e-16)])
def test_pairs_are_box_mullers_also_at_the_extremes(dtype: str, relative: float) -> None:
    for u, a, v in zip(*words(dtype), strict=True):
        got = box_muller_python(u, a, dtype, v)
        first, second, radius = exact_pair(u, a, dtype, v)
        assert abs(got[0] - first) <= relative * radius, (u, a)
        assert abs(got[1] - second) <= relative * radius, (u, a)


@pytest.mark.parametrize("dtype", DTYPES)
def test_pairs_in_numpy_are_those_in_python(dtype: str) -> None:
    radii, angles, extensions = words(dtype)
    cases = zip(radii, angles, extensions, strict=True)
    pairs = [box_muller_python(u, a, dtype, v) for u, a, v in cases]
    angle_dtype = np.uint32 if dtype == "float32" else np.uint64
    more = None if dtype == "float32" else np.array(extensions, np.uint64)
    first, second = box_muller(
        np.array(radii, np.uint64), np.array(angles, angle_dtype), dtype, more
    )
    assert first.dtype == second.dtype == dtype
    assert bits([p[0] for p in pairs], dtype) == bits(first, dtype)
    assert bits([p[1] for p in pairs], dtype) == bits(second, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_radius(dtype: str) -> None:
    bits = 64 if dtype == "float32" else 128
    largest = math.sqrt(2 * (bits + 1) * math.log(2))
    assert box_muller_python(0, 0, dtype, 0) == (pytest.approx(largest, rel=1e-7), 0.0)
    assert largest == pytest.approx(9.49 if dtype == "float32" else 13.37, abs=0.004)


def test_the_smallest_radius_of_float64_is_exact() -> None:
    assert box_muller_python(2**64 - 1, 0, "float64", 2**64 - 1) == (2**-63.5, 0.0)


def test_float32_by_rounding_doubles_is_float32() -> None:
    rng = np.random.default_rng(32)
    a, b = (rng.integers(0, 2**32, (2, 20_000), dtype=np.uint32)).view(np.float32)
    keep = np.isfinite(a) & np.isfinite(b)
    keep &= (np.abs(a) < 1e18) & (np.abs(b) < 1e18)  # subnormal results stay in, overflow does not
    a, b = a[keep], b[keep]
    near = (a * np.float32(1.0 + 2.0**-11)).astype(np.float32)  # sums and differences with carries
    for x, y in ((a, b), (a, near), (a, -near)):
        for numpy_result, python in (
            (x + y, lambda p, q: p + q),
            (x - y, lambda p, q: p - q),
            (x * y, lambda p, q: p * q),
            (np.sqrt(np.abs(x)), lambda p, q: math.sqrt(abs(p))),
        ):
            doubles = map(python, x.tolist(), y.tolist())
            assert bits([stream_python._round32(d) for d in doubles], "float32") == bits(
                numpy_result, "float32"
            )


# --- normals of a node ----------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [8, 12, 20])
@pytest.mark.parametrize("dtype", DTYPES)
def test_normals_in_numpy_are_those_in_python(dtype: str, rounds: int) -> None:
    for start, size in ((0, 700), (250, 12), (255, 1), (256, 1), (2**32 - 77, 300)):
        for node in (NODE, {"tree": 2**32 - 1, "level": 40, "index": 99}):
            case = dict(start=start, size=size, dtype=dtype, rounds=rounds, purpose=rounds)
            got = normals(KEY, **node, **case)
            assert got.dtype == dtype
            assert got.shape == (size,)
            assert bits(normals_python(KEY, **node, **case), dtype) == bits(got, dtype)


def test_the_end_of_the_coordinates() -> None:
    for dtype, end in (("float32", 2**36), ("float64", 2**35)):
        case = dict(start=end - 300, size=300, dtype=dtype)
        assert bits(normals_python(KEY, **NODE, **case), dtype) == bits(
            normals(KEY, **NODE, **case), dtype
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_split_of_the_coordinates_gives_slices(dtype: str) -> None:
    rng = np.random.default_rng(5)
    first, size = 2**32 - 40_001, 80_000  # more superblocks than are made at once
    whole = normals(KEY, **NODE, start=first, size=size, dtype=dtype)
    for _ in range(5):
        cuts = np.sort(rng.choice(np.arange(1, size), 12, replace=False))
        parts = [
            normals(KEY, **NODE, start=first + int(low), size=int(high - low), dtype=dtype)
            for low, high in zip([0, *cuts], [*cuts, size], strict=True)
        ]
        assert bits(np.concatenate(parts), dtype) == bits(whole, dtype)


def test_rare_radius_words_take_their_low_half_from_the_extension() -> None:
    size = 2**19
    w13, w14, w15 = stream.node_counter(0, 1, **NODE)
    radius = chacha_blocks(KEY, np.arange(size // 16, dtype=np.uint32), (w13, w14, w15))[:8]
    rows, blocks = np.nonzero(radius < 2**18)
    # 262144 radii, each rare with probability 2^-14: 16 expected, Poisson
    assert 4 <= rows.size <= 36
    z = normals(KEY, **NODE, start=0, size=size)
    for j, block in zip(rows.tolist(), blocks.tolist(), strict=True):
        superblock, i = divmod(block, 16)
        lower, upper = (superblock * 256 + row * 16 + i for row in (j, j + 8))
        for c in (lower, upper):
            assert normals_python(KEY, **NODE, start=c, size=1) == [z[c]]
        # The radius that both coordinates give back is that of the 64-bit word, extension (one kind
        # further: 2^16 more in word 15) included, to float32 accuracy.
        low_half = chacha_block(KEY, (block, w13, w14, w15 + 2**16))[j]
        u = (int(radius[j, block]) << 32) + low_half
        expected = math.sqrt(-2 * math.log(u / 2**64))
        assert math.hypot(float(z[lower]), float(z[upper])) == pytest.approx(expected, rel=3e-7)
    # Elsewhere the low half is zero.
    z_radius = np.hypot(*np.asarray(z.reshape(-1, 2, 8, 16), float).swapaxes(0, 1))
    u = radius.astype(float).reshape(8, -1, 16).swapaxes(0, 1) / 2**32
    common = u >= 2**-14
    np.testing.assert_allclose(z_radius[common], np.sqrt(-2 * np.log(u[common])), rtol=4e-7)


@pytest.mark.parametrize("make", [normals, normals_python])
def test_the_thresholds_of_the_extension_in_float64(make, monkeypatch) -> None:
    """High halves of radius words at both ends, in the place of ChaCha's; extensions are ones."""
    radii = [0, 2**18 - 1, 2**18, 2**31, 2**32 - 2**18 - 1, 2**32 - 2**18, 2**32 - 1, 5]
    kinds: set[int] = set()

    def block(key: bytes, counter: tuple[int, ...], rounds: int) -> list[int]:
        kinds.add(counter[3] >> 16)
        if counter[3] >> 16 == 5:
            return [2**32 - 1 - counter[0]] * 16
        return radii + [0] * 8

    def blocks(
        key: bytes, numbers: np.ndarray, counter: tuple[int, ...], rounds: int
    ) -> np.ndarray:
        columns = [block(key, (int(n), *counter), rounds) for n in numbers]
        return np.array(columns, np.uint32).T

    for module in (stream, stream_python):
        for name, function in {"chacha_block": block, "chacha_blocks": blocks}.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, function)
    z = np.reshape(make(KEY, **NODE, start=0, size=128, dtype="float64"), (16, 8))
    assert kinds == {3, 5}
    for j, high in enumerate(radii):
        for lane in range(8):
            u = high << 32 | high
            v = (2**32 - 1 - (2 * lane + 1)) << 32 | (2**32 - 1 - 2 * lane)
            assert (z[j, lane], z[j + 8, lane]) == box_muller_python(u, 0, "float64", v)
            rare = not 2**18 <= high < 2**32 - 2**18
            radius = float(mpmath.sqrt(-2 * mpmath.log(value_of(u, v if rare else None))))
            assert z[j, lane] == pytest.approx(radius, rel=1e-14)


@pytest.mark.parametrize("make", [normals, normals_python])
def test_version_1_takes_no_word_of_float64_for_rare(make) -> None:
    where = {**NODE, "start": 0, "size": 1 << (17 if make is normals else 10)}
    old = np.array(make(KEY, **where, dtype="float64", version=1))
    new = np.array(make(KEY, **where, dtype="float64"))
    w13, w14, w15 = stream.node_counter(0, 3, **NODE)
    numbers = np.arange(1, where["size"] // 8, 2, dtype=np.uint32)
    high = chacha_blocks(KEY, numbers, (w13, w14, w15))[:8].reshape(8, -1, 8).swapaxes(0, 1)
    rare = ((high < 2**18) | (high >= 2**32 - 2**18)).reshape(-1, 64)
    both = np.concatenate((rare, rare), axis=1).ravel()
    assert (old == new)[~both].all()
    assert both.sum() > 4 or make is normals_python
    assert (old != new)[both].any() == both.any()
    assert np.array_equal(
        make(KEY, **NODE, start=0, size=700, version=1), make(KEY, **NODE, start=0, size=700)
    )
    with pytest.raises(ValueError, match="version must be 1 or 2, got 3"):
        make(KEY, **where, version=3)


@pytest.mark.parametrize("make", [normals, normals_python])
def test_the_threshold_of_the_extension(make, monkeypatch) -> None:
    """Radius words around 2^18 put in the place of ChaCha's; all extension words are ones."""
    radii = [2**18 - 2, 2**18 - 1, 2**18, 2**18 + 1, 2**19 - 1, 2**31, 0, 1]
    ones = 2**32 - 1
    seen: set[int] = set()

    def block(key: bytes, counter: tuple[int, ...], rounds: int) -> list[int]:
        is_extension = counter[3] >> 16 == 2
        return [ones] * 16 if is_extension else radii + [0] * 8

    def blocks(
        key: bytes, numbers: np.ndarray, counter: tuple[int, ...], rounds: int
    ) -> np.ndarray:
        columns = [block(key, (int(n), *counter), rounds) for n in numbers]
        return np.array(columns, np.uint32).T

    def pairs(
        u: np.ndarray, a: np.ndarray, dtype: object, v: None
    ) -> tuple[np.ndarray, np.ndarray]:
        seen.update(u.ravel().tolist())
        return box_muller(u, a, dtype)

    def pair(u: int, a: int, dtype: object, v: None) -> tuple[float, float]:
        seen.add(u)
        return box_muller_python(u, a, dtype)

    for name, function in {
        "chacha_block": block,
        "chacha_blocks": blocks,
        "box_muller": pairs,
        "box_muller_python": pair,
    }.items():
        for module in (stream, stream_python):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, function)
    make(KEY, **NODE, start=0, size=256)
    assert seen == {(word << 32) + (ones if word < 2**18 else 0) for word in radii}


def test_the_extension_matters() -> None:
    """With words of 18 zero bits the low half moves the radius by much: it is not decoration."""
    with_one = box_muller_python(0 << 32 | 1, 0, "float32")[0]
    with_all = box_muller_python(0 << 32 | 0xFFFFFFFF, 0, "float32")[0]
    assert with_one > 9.4
    assert with_all < 6.7


def test_every_argument_changes_the_stream() -> None:
    base = dict(tree=1, level=2, index=3, start=0, size=64, dtype="float64", rounds=12, purpose=0)
    changes = [
        {},
        {"tree": 0},
        {"tree": 1 + 2**16},
        {"level": 3},
        {"index": 4},
        {"level": 34, "index": 3},
        {"start": 64},
        {"dtype": "float32"},
        {"rounds": 8},
        {"rounds": 20},
        {"purpose": 1},
        {"purpose": 2},
    ]
    streams = [normals(KEY, **{**base, **change}) for change in changes]
    streams.append(normals(key_from_seed(1), **base))
    for n, a in enumerate(streams):
        for b in streams[:n]:
            assert np.abs(np.corrcoef(a, b)[0, 1]) < 0.55  # 64 pairs: 4.4 sigma
