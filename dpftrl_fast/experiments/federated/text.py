# SPDX-License-Identifier: Apache-2.0
"""Next-word prediction on the speakers of Shakespeare's plays: clients of a federation.

An example is a sentence, cut into pieces of 20 words where it is longer: a begin token, the words'
numbers, an end token where the piece is shorter than 20 words, and padding up to 21 numbers. So
``example[:20]`` is the input of a network and ``example[1:]`` its target.

The vocabulary is public: the most frequent words of the poems, which no speaker says. A vocabulary
chosen by word counts of the clients would be a release of their texts, with a privacy cost.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import integer, positive_integer
from dpftrl_fast.datasets import Shakespeare, hashed_order, shakespeare
from dpftrl_fast.datasets.packages import file_in

#: Token numbers below the first word's.
PADDING, BEGIN, END, OTHER = 0, 1, 2, 3
FIRST_WORD = 4

#: Tokens that a network reads of an example; an example has one more.
LENGTH = 20

_ORDER = "shakespeare/speakers"
_HELD_OUT = 10  # one speaker in so many
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*")
_SENTENCE_END = re.compile(r"[.?!;:]+")

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Clients:
    """Clients in a published order, their examples, and test examples of other clients.

    Examples are rows of 21 token numbers in ``range(vocabulary)``, in the order of the text:
    `PADDING`, `BEGIN`, `END` and `OTHER` (a word outside of the vocabulary), and words.
    """

    names: tuple[str, ...]
    examples: tuple[Ints, ...]
    test: Ints
    vocabulary: int

    def __len__(self) -> int:
        return len(self.names)

    def validation(self, clients: int) -> Clients:
        """Return all but the last `clients` clients, tested on those, to choose settings."""
        cut = len(self) - integer("clients", clients, 1, len(self) - 1)
        test = np.concatenate(self.examples[cut:])
        return Clients(self.names[:cut], self.examples[:cut], test, self.vocabulary)

    def first(self, clients: int, test: int) -> Clients:
        """Return only the first clients and test examples, for a quick run."""
        return Clients(
            self.names[:clients], self.examples[:clients], self.test[:test], self.vocabulary
        )


def speaking_clients(
    texts: Shakespeare, *, words: int = 2_000, most_examples: int = 256
) -> Clients:
    """Return the speakers as clients.

    These are the speakers who say a word. A tenth of them, the last ones of the published order
    `hashed_order` of ``shakespeare/speakers``, is held out, so that the test examples are of
    others' speeches in the same plays. The vocabulary has the `words` most frequent words of the
    poems, in alphabetical order where frequencies are equal. The first `most_examples` examples of
    a client are kept.
    """
    positive_integer("words", words)
    positive_integer("most_examples", most_examples)
    numbers = _vocabulary(texts.poems.values(), words)
    spoken = {}
    for name, speeches in texts.speakers.items():
        rows = [row for speech in speeches for row in _rows(speech, numbers)]
        if rows:
            spoken[name] = np.array(rows[:most_examples], dtype=np.int32)
    return split_clients(spoken, _ORDER, FIRST_WORD + words)


def load_shakespeare(data: Path | None, words: int = 2_000) -> Clients:
    """Return the speakers of Shakespeare's plays as clients.

    The data are the source distribution of ``shakespeare`` or its texts in `data`, or those of the
    installed package.
    """
    source = file_in(data, "shakespeare-*.tar.gz", "*_gut.txt")
    if source is not None and source.suffix == ".txt":
        source = source.parent
    return speaking_clients(shakespeare(source), words=words)


def _vocabulary(texts: Iterable[str], words: int) -> Mapping[str, int]:
    """Return numbers of the most frequent words."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_WORD.findall(text.lower()))
    if len(counts) < words:
        raise ValueError(f"expected {words} words in the poems, got {len(counts)}")
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: FIRST_WORD + i for i, word in enumerate(ranked[:words])}


def _rows(speech: str, numbers: Mapping[str, int]) -> Iterator[list[int]]:
    """Yield the examples of a speech."""
    for sentence in _SENTENCE_END.split(speech.lower()):
        yield from padded([numbers.get(word, OTHER) for word in _WORD.findall(sentence)])


def padded(tokens: Sequence[int]) -> Iterator[list[int]]:
    """Yield the examples of a sentence, 21 numbers each.

    Examples
    --------
    >>> [row[:4] for row in padded([7, 8])]
    [[1, 7, 8, 2]]
    >>> [row[-2:] for row in padded([7] * 20 + [8])]
    [[7, 7], [0, 0]]
    """
    for start in range(0, len(tokens), LENGTH):
        piece = tokens[start : start + LENGTH]
        row = [BEGIN, *piece, END] if len(piece) < LENGTH else [BEGIN, *piece]
        yield row + [PADDING] * (LENGTH + 1 - len(row))


def split_clients(examples: Mapping[str, Ints], order: str, vocabulary: int) -> Clients:
    """Return clients in a published order (see `hashed_order`), the last tenth held out."""
    names = sorted(examples)
    names = [names[i] for i in hashed_order(order, len(names))]
    cut = len(names) - len(names) // _HELD_OUT
    none = np.empty((0, LENGTH + 1), dtype=np.int32)
    test = np.concatenate([none, *(examples[name] for name in names[cut:])])
    clients = tuple(examples[name] for name in names[:cut])
    return Clients(tuple(names[:cut]), clients, test, vocabulary)
