"""How the site is built: `./run.sh docs`, without network; every warning is an error."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "detrain"
author = "the authors of detrain"
project_copyright = "the authors of detrain, Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "from_the_code"]
exclude_patterns = ["_ext", "demo"]
nitpicky = True

# An anchor for each heading down to the third level, as GitHub makes them: links work in both.
myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]
default_role = "code"
smartquotes = False  # options begin with two dashes
autodoc_member_order = "bysource"
autodoc_typehints = "description"
nitpick_ignore_regex = [("py:.*", r"(?!detrain).*"), ("py:class", r"detrain\.(base|runtime)\..*")]

html_theme = "furo"
html_title = "detrain"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
