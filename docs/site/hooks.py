"""What the site consists of: the README with every file that it leads to, and pages made from the code.

Each file keeps its path in the repository, so the links that work on GitHub work here, unchanged.
"""

from __future__ import annotations

import json
import re
import sys
from html import escape
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # the catalogue of this checkout, whichever copy is installed

from fxflops.counting.catalogue_page import Row, catalogue, counts  # noqa: E402

LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")
FENCED = re.compile(r"^```.*?^```", re.S | re.M)
UNSEARCHED = ("benchmarks/", "CHANGELOG.md", "docs/changes_before_1.0", "reference/operations")
"""Tables of many rows: the catalogue's page is searched, and the operations have a search of their own."""
STYLE = "docs/site/site.css"
SCRIPT = ROOT / "docs" / "site" / "operations.js"

NAMED = """<script>
const named = () => document.querySelectorAll(".md-code__nav").forEach((each, i) => each.setAttribute("aria-label", `block of code ${i + 1}`));
new MutationObserver(named).observe(document.body, { childList: true, subtree: true });
</script>"""

REFERENCE = {
    "functions": (
        "Functions",
        "Counting, measuring and predicting. Counts are ints, times are in seconds and sizes in bytes, unless the name says otherwise.",
        """count analyze summary profile read_trace compare closed_form serving largest_batch plan_checkpoints calibrate
        load_model list_conventions TorchFLOPsByFX""",
    ),
    "report": (
        "Report and results",
        "What the functions return. A value that was not measured is None.",
        """Report Cost counting.uncounted.Missing prediction.Prediction prediction.Reserved roofline.result.Roofline
        report.diff.Diff report.explain.Explanation render.exports.Table""",
    ),
    "distributed": (
        "Many processes",
        "Counting the ranks of a job that does not run.",
        """distributed.simulate distributed.Simulation distributed.step_bound distributed.step_prediction
        distributed.rank_meshes distributed.train_meshes distributed.Links""",
    ),
    "training": (
        "Training",
        "Metering a training loop, and the formulas that trainers report by.",
        "integrations.Meter trainers.list_trainers trainers.estimate trainers.explain trainers.active_parameters",
    ),
    "extending": (
        "Extending",
        "Formulas for operations that fxflops does not know, and conventions.",
        """formula testing.check_formula conventions.Convention FUNCTION_FLOPs_MAPPING METHOD_FLOPs_MAPPING
        MODULE_FLOPs_MAPPING""",
    ),
    "errors": (
        "Errors",
        "Every error of fxflops is an `FxflopsError`.",
        """FxflopsError InputError RunError OutOfMemoryError TraceError FormulaError MissingFormulaError ClosedFormError
        DistributedError""",
    ),
}
"""The pages of the Python reference: title, introduction, and the names under ``fxflops``."""
MADE_BY_FXFLOPS = "\n    options: {merge_init_into_class: false}"
"""Leaves out how an object is made: users get it from a function."""


class Notebook(File):
    """A notebook, which mkdocs would copy, as a page."""

    def is_documentation_page(self) -> bool:
        return True


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of the folder docs by the site's, each under its path in the repository."""
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    for path in [*sorted(linked("README.md")), STYLE]:
        if path.endswith(".ipynb"):
            files.append(Notebook.generated(config, path, content=notebook_page(ROOT / path)))
        else:
            files.append(File(path, str(ROOT), config.site_dir, config.use_directory_urls))
    for name, (title, introduction, names) in REFERENCE.items():
        options = MADE_BY_FXFLOPS if name == "report" else ""
        entries = [f"::: fxflops.{public}{options}" for public in names.split()]
        text = "\n\n".join([f"# {title}", introduction, *entries])
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    files.append(File.generated(config, "reference/operations.md", content=operations_page(catalogue())))
    return files


def on_post_page(output: str, **_: Any) -> str:
    """Name the parts of the theme that have no name for screen readers: the search, and here the buttons of each block of code."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"').replace("</body>", f"{NAMED}</body>")


def on_page_markdown(markdown: str, page: Page, **_: Any) -> None:
    if page.file.src_uri.startswith(UNSEARCHED):
        page.meta["search"] = {"exclude": True}


def linked(start: str) -> set[str]:
    """Return the paths of the files to which links lead from ``start``, over any number of pages, with ``start`` itself."""
    paths, pages = {start}, [start]
    while pages:
        page = pages.pop()
        for target in LINK.findall(FENCED.sub("", (ROOT / page).read_text(encoding="utf8"))):
            path = normpath(join(dirname(page), target))
            if path not in paths and (ROOT / path).is_file():  # mkdocs warns of a link that leads nowhere
                paths.add(path)
                pages += [path] * path.endswith(".md")
    return paths


def notebook_page(file: Path) -> str:
    """Return the cells of a notebook, and what they put out, as Markdown."""
    parts = []
    for cell in json.loads(file.read_text(encoding="utf8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [shown(output) for output in cell.get("outputs", [])]
    return "\n\n".join(parts)


def shown(output: dict[str, Any]) -> str:
    if "text/html" in output.get("data", {}):
        return (
            '<div class="output" data-search-exclude>'
            + "".join(output["data"]["text/html"]).replace("\n\n", "\n")
            + "</div>"
        )
    text = "".join(output.get("text") or output["data"]["text/plain"]).rstrip("\n")
    return f"```text\n{text}\n```"


def operations_page(rows: list[Row]) -> str:
    """Return a page with a table of all operations, and a field to search it."""
    parts = [
        "# Operations",
        "Every operation that fxflops counts, or counts as nothing, with the reason. "
        "[What is counted](../fxflops/ops/README.md) has the same by family, with what other tools count; "
        "`fxflops ops WORD` searches it in a shell.",
        '<p><label>Search <input id="find" type="search" placeholder="gelu, aten::mm, nn.Conv2d" autocomplete="off"></label> '
        '<output id="found" for="find"></output></p>',
        '<table id="operations">',
        "<thead><tr><th>op</th><th>counted</th><th>reached by</th><th>family</th></tr></thead>",
        f"<tbody>\n{''.join(map(table_row, rows))}</tbody></table>",
        f"<script>\n{SCRIPT.read_text(encoding='utf8')}</script>",
    ]
    return "\n\n".join(parts)


def table_row(row: Row) -> str:
    counted = re.sub("^(.*? -> .*?): ", r"`\1`: ", counts(row), count=1)
    targets = " ".join(f"`{target}`" for target in row.targets)
    family = f'<a href="../../fxflops/ops/#{row.family}">{row.family}</a>' if row.family else "none"
    cells = [f"<td>{code(cell)}</td>" for cell in (f"`{row.op}`", counted, targets)]
    return f"<tr>{''.join(cells)}<td>{family}</td></tr>\n"


def code(text: str) -> str:
    """Return a text as HTML, with its parts between backticks as code."""
    return re.sub("`(.*?)`", r"<code>\1</code>", escape(text))
