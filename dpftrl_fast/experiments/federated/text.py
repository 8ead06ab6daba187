# SPDX-License-Identifier: Apache-2.0
"""Next-word prediction on the speakers of Shakespeare's plays: clients of a federation.

An example is a sentence, cut into pieces of 20 words where it is longer: a begin token, the words'
numbers, an end token where the piece is shorter than 20 words, and padding up to 21 numbers. So
``example[:20]`` is what a network reads and ``example[1:]`` what it should say.

The vocabulary is public: the most frequent words of the poems, which no speaker says. Words chosen
by how often clients use them would be a release of their texts, and its privacy would have to be
paid for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.datasets import Shakespeare, hashed_order, shakespeare

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
    """Clients of a federation, their examples, and held-out ones.

    Attributes
    ----------
    names : tuple of str
        Of the clients, in a published order.
    examples : tuple of (n_k, 21) arrays of int32
        Token numbers, `PADDING`, `BEGIN`, `END` and `OTHER` (a word outside of the vocabulary)
        below those of words; in the order in which they were said.
    test : (m, 21) array of int32
        Examples of other clients.
    vocabulary : int
        Token numbers lie in ``range(vocabulary)``.
    """

    names: tuple[str, ...]
    examples: tuple[Ints, ...]
    test: Ints
    vocabulary: int

    def __len__(self) -> int:
        return len(self.names)

    def validation(self, clients: int) -> Clients:
        """Return all but the last clients, tested on those: to choose settings by.

        Parameters
        ----------
        clients : int
            How many are held out.

        Raises
        ------
        ValueError
            If no client is held out, or none is left.
        """
        if not 0 < clients < len(self):
            raise ValueError(f"clients must lie between 0 and {len(self)}, got {clients}")
        cut = len(self) - clients
        test = np.concatenate(self.examples[cut:])
        return Clients(self.names[:cut], self.examples[:cut], test, self.vocabulary)

    def first(self, clients: int, test: int) -> Clients:
        """Return only the first clients and test examples: a small part to try things on."""
        return Clients(
            self.names[:clients], self.examples[:clients], self.test[:test], self.vocabulary
        )


def speaking_clients(
    texts: Shakespeare, *, words: int = 2_000, most_examples: int = 256
) -> Clients:
    """Return the speakers as clients.

    A tenth of the speakers, the last ones of the published order `hashed_order` of
    ``shakespeare/speakers``, is held out, so that the test examples are of others' speeches in the
    same plays.

    Parameters
    ----------
    texts : Shakespeare
    words : int
        Words of the vocabulary: the most frequent of the poems, by the alphabet where frequencies
        are equal.
    most_examples : int
        Of a client, held out or not: the first ones.

    Returns
    -------
    Clients
        Of the speakers who say a word.

    Raises
    ------
    ValueError
        If a number is not positive, or the poems have fewer words.
    """
    if not (words > 0 and most_examples > 0):
        raise ValueError(
            f"words and most_examples must be positive, got {words} and {most_examples}"
        )
    numbers = _vocabulary(texts.poems.values(), words)
    spoken = {}
    for name, speeches in texts.speakers.items():
        rows = [row for speech in speeches for row in _rows(speech, numbers)]
        if rows:
            spoken[name] = np.array(rows[:most_examples], dtype=np.int32)
    return dealt(spoken, _ORDER, FIRST_WORD + words)


def load_shakespeare(data: Path | None, *, words: int = 2_000) -> Clients:
    """Return the speakers of Shakespeare's plays as clients.

    Parameters
    ----------
    data : Path, optional
        Folder that may hold the source distribution of ``shakespeare`` or its texts; else they are
        the installed package's.
    words : int
        Of the vocabulary.

    Raises
    ------
    FileNotFoundError
        Without the data.
    """
    source = None
    if data is not None:
        archives = sorted(data.glob("shakespeare-*.tar.gz"))
        if archives:
            source = archives[0]
        elif any(data.glob("*_gut.txt")):
            source = data
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


def dealt(examples: Mapping[str, Ints], order: str, vocabulary: int) -> Clients:
    """Return clients in a published order, the last tenth of them held out.

    Parameters
    ----------
    examples : mapping of str to (n, 21) arrays of int32
    order : str
        Name of the order, of the names sorted; see `hashed_order`.
    vocabulary : int
    """
    names = sorted(examples)
    names = [names[i] for i in hashed_order(order, len(names))]
    cut = len(names) - len(names) // _HELD_OUT
    none = np.empty((0, LENGTH + 1), dtype=np.int32)
    test = np.concatenate([none, *(examples[name] for name in names[cut:])])
    clients = tuple(examples[name] for name in names[:cut])
    return Clients(tuple(names[:cut]), clients, test, vocabulary)
