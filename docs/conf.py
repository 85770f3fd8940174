"""How the documentation is built: ``sphinx-build -W --keep-going -b html docs build/docs``.

Pages that say what the code knows (the reference, the methods, the tutorials) are written by ``generated.py`` before
Sphinx looks for pages; git ignores them.
"""

import sys
from pathlib import Path

from sphinx.application import Sphinx

import workbench

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import generated  # noqa: E402
import tutorials  # noqa: E402

project = "Boost Workbench"
author = "the contributors"
copyright = "the contributors, Apache-2.0"
release = version = workbench.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_design"]
smartquotes = False  # they would make one dash of the two before an option
default_role = "code"  # docstrings write names in single backticks

myst_enable_extensions = ["colon_fence", "deflist", "substitution"]
myst_heading_anchors = 3
myst_substitutions = generated.quickstart()
nb_execution_mode = "off"  # the tests execute the notebooks; their copies are taken where there are any
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80

copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = "Boost Workbench"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_js_files = ["accessible.js"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0072B2", "color-brand-content": "#0072B2"},
    "dark_css_variables": {
        "color-brand-primary": "#56B4E9",
        "color-brand-content": "#56B4E9",
        "color-background-primary": "#0D1117",  # of GitHub's dark pages, for which the pictures are made, too
        "color-background-secondary": "#161B22",
    },
    "top_of_page_buttons": [],
}


def setup(app: Sphinx) -> None:
    """Write the generated pages, and load plotly where a page has figures."""
    app.connect("builder-inited", lambda app: generated.write_pages(HERE, generated.pages() | tutorials.pages()))
    app.connect("builder-inited", tutorials.write_plotly)
    app.connect("autodoc-process-signature", generated.short_signature)
    app.connect("html-page-context", tutorials.load_plotly)
