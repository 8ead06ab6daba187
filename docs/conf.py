# SPDX-License-Identifier: Apache-2.0
"""Settings of the documentation site: `make docs` builds it into build/docs/html."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_site"))

from public_names import names_in_table  # noqa: E402
from site_pages import link_pages, resolve_links, write_pages  # noqa: E402

import dpftrl_fast  # noqa: E402

project = "dpftrl-fast"
author = "The dpftrl-fast authors"
copyright = "The dpftrl-fast authors. Licence: Apache 2.0"
version = release = dpftrl_fast.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_site", "gallery", "images", "**/*.py", "**/*.jsonl"]
nitpicky = True
nitpick_ignore = [("py:obj", "seed_seq")]  # of NumPy's BitGenerator
smartquotes = False  # `--option` stays as it is typed
highlight_language = "text"
pygments_style = "friendly"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 6

# Types are in the docstrings, in words.
autodoc_typehints = "none"
autodoc_preserve_defaults = True
toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# Programs with figures, which run while the site is built.
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "generated/gallery",
    "within_subsection_order": "FileNameSortKey",
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "min_reported_time": 1,
    "thumbnail_size": (420, 280),
}

html_theme = "pydata_sphinx_theme"
html_title = f"dpftrl-fast {release}"
html_static_path = ["_site/static"]
html_css_files = ["site.css"]
html_favicon = "_site/static/tree.svg"
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "logo": {
        "text": f"dpftrl-fast {release}",
        "image_light": "_site/static/tree.svg",
        "image_dark": "_site/static/tree_dark.svg",
    },
    "header_links_before_dropdown": 6,
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "pygments_light_style": "tango",
    "pygments_dark_style": "monokai",
}
html_sidebars = {"index": []}

# A link whose text is the name of a page: the site shows the page's title.
FILE_NAME = re.compile(r"\[[\w/.]+\.md\]\(([^)\s]+\.md(?:#[^)\s]*)?)\)")


def on_source_read(app: Any, docname: str, source: list[str]) -> None:
    """Let links of a page lead to pages of the site."""
    path = Path(app.env.doc2path(docname))
    if path.suffix != ".md" or docname.startswith("generated/"):
        return
    source[0] = FILE_NAME.sub(r"[](\1)", resolve_links(source[0], path))
    if docname == "reference/api":
        source[0] = with_links_to_names(source[0])


def with_links_to_names(text: str) -> str:
    """Return the list of public names with a link from each to its page."""
    pages = iter([f"{module}.{name}" for module, name in names_in_table(text)])
    modules: dict[str, None] = {}
    lines = []
    for line in text.splitlines():
        if line.startswith("| `"):
            first, bar, rest = line.partition(" | ")

            def link(code: re.Match[str]) -> str:
                full = next(pages)
                modules.setdefault(full.rpartition(".")[0])
                return f"[`{code.group(1)}`](/generated/api/{full}.rst)"

            line = re.sub(r"`([^`]+)`", link, first) + bar + rest
        lines.append(line)
    toctree = [f"/generated/api/{module}" for module in modules]
    return "\n".join([*lines, "", "```{toctree}", ":hidden:", "", *toctree, "```", ""])


def on_docstring(
    app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Let the pages that a docstring names be links."""
    lines[:] = [link_pages(line) for line in lines]


def setup(app: Any) -> None:
    write_pages()
    app.connect("source-read", on_source_read)
    app.connect("autodoc-process-docstring", on_docstring, priority=900)  # after numpydoc
