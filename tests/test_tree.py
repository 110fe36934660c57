"""The shape of the project: what lies where, how long files are, what formulas and front ends may do."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dsa_ledger"
TOP_LEVEL = {"pyproject.toml", "dsa_ledger", "calib", "scenarios", "tests", "README.md", "LICENSE", "CHANGELOG.md"}
MOST_LINES = 400  # the aim is near 300; a file that nears the cap is two files

# The brackets keep this file from naming what it forbids: a workplace's folders, and package registries' hosts.
FORBIDDEN = re.compile(
    r"/[w]ork/|(?<![\w/-])[s]hared/(?:facts|golden|cases|measured|model_configs)|[.]library/|/tmp/[b]rief"
    r"|[p]ypi\.org|[p]ythonhosted|[a]naconda\.org|[c]rates\.io|[n]pmjs|proxy\.[g]olang",
    re.IGNORECASE,
)

FORMULA_FILES = sorted(path for path in (PACKAGE / "formulas").glob("*.py") if path.stem not in {"helpers", "__init__"})
HELPERS = {
    node.name
    for node in ast.parse((PACKAGE / "formulas" / "helpers.py").read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
}
SHARES = PACKAGE / "render" / "budget.py"  # the one place that makes figures: shares of a bar, for drawing alone
FRONT_ENDS = sorted({*PACKAGE.glob("cli*.py"), *PACKAGE.glob("render*.py"), *PACKAGE.glob("render/*.py")} - {SHARES})
OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
UNIT = re.compile(r"\[[a-z0-9%/ -]+\]", re.IGNORECASE)


def test_the_top_level_holds_only_what_the_design_names(project_files):
    top = {path.split("/")[0] for path in project_files}
    assert {name for name in top - TOP_LEVEL if not name.startswith(".")} == set()


def test_no_module_is_longer_than_the_cap(project_files):
    lines = {
        path: (ROOT / path).read_text(encoding="utf-8").count("\n")
        for path in project_files
        if path.startswith(("dsa_ledger/", "calib/")) and path.endswith(".py")
    }
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}
    assert len(lines) > 10


def test_no_file_names_a_workplace_or_a_registry(project_files):
    named = {
        path: sorted(set(FORBIDDEN.findall((ROOT / path).read_bytes().decode("utf-8", "replace"))))
        for path in project_files
    }
    assert {path: words for path, words in named.items() if words} == {}


@pytest.mark.parametrize("text", ["in /work" + "/main", "see shared" + "/facts/x.md", "https://py" + "pi.org/simple"])
def test_the_forbidden_words_are_found(text):
    assert FORBIDDEN.search(text)


def front_end_faults(source: str) -> list[str]:
    """Return each arithmetic that a front end does on a quantity: it shows figures, it makes none.

    Columns may be added up and scaled by a width, text repeated or formatted; figures (`.value`, `ledger[...]`) stay.
    """
    faults = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.BinOp | ast.AugAssign):
            continue
        sides = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.target, node.value]
        on_layout = any(_is_text(side) or _is_width(side) for side in sides)
        on_figure = any(_holds_figure(side) for side in sides)
        scales = isinstance(node.op, ast.Mult | ast.Div | ast.FloorDiv | ast.Mod | ast.Pow)
        if on_figure or (scales and not on_layout):
            faults.append(f"line {node.lineno}: {ast.unparse(node)}")
    return faults


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_width(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id.lower().endswith("width")


def _holds_figure(node: ast.AST) -> bool:
    return any(
        (isinstance(part, ast.Attribute) and part.attr == "value")
        or (isinstance(part, ast.Subscript) and isinstance(part.value, ast.Name) and part.value.id == "ledger")
        for part in ast.walk(node)
    )


def test_front_ends_do_no_arithmetic_on_quantities():
    found = {path.name: front_end_faults(path.read_text(encoding="utf-8")) for path in FRONT_ENDS}
    assert {name: faults for name, faults in found.items() if faults} == {}
    assert {"cli.py"} <= set(found), "the front ends were not found"
    assert any(name != "cli.py" for name in found), "the renderer was not found"


@pytest.mark.parametrize(
    "source",
    [
        "a.value + b.value",
        "x / 2**30",
        "ledger['a'] - free",
        "total += entry.value",
        "n // 64",
        "n % 64",
        "entry.value * width",
    ],
)
def test_front_end_arithmetic_is_found(source):
    assert front_end_faults(source)


@pytest.mark.parametrize(
    "source", ["'-' * 80", "share * BAR_WIDTH", "columns + 2", "'%s' % name", "a | b", "name + 's'"]
)
def test_front_end_layout_is_allowed(source):
    assert front_end_faults(source) == []


def formula_faults(source: str, known: set[str]) -> list[str]:
    """Return each breach of the formula rules in one module; `known` are the other formulas and the helpers."""
    faults, functions = [], []
    for node in ast.parse(source).body[1:]:
        if isinstance(node, ast.FunctionDef):
            functions.append(node)
        elif not (isinstance(node, ast.ImportFrom) and _may_import(node.module)):
            faults.append(
                f"{ast.unparse(node)}: a formula module holds a docstring, imports of formulas, and functions"
            )
    known = known | {function.name for function in functions}
    for function in functions:
        faults += [f"{function.name}: {fault}" for fault in _function_faults(function, known)]
    return faults


def _may_import(module: str | None) -> bool:
    return module in {"__future__", "typing"} or (module or "").startswith("dsa_ledger.formulas")


def _function_faults(function: ast.FunctionDef, known: set[str]) -> list[str]:
    given, faults = function.args, []
    if given.args or given.posonlyargs or given.vararg or given.kwarg or function.decorator_list:
        faults.append("takes something else than keyword-only parameters")
    if any(default is not None for default in given.kw_defaults):
        faults.append("has a default, which would not show in the ledger")
    docstring = ast.get_docstring(function) or ""
    if not docstring.startswith("Return "):
        faults.append("the docstring does not say what it returns")
    if not UNIT.search(docstring):
        faults.append("the docstring names no unit in brackets")
    if not re.search(r"Source: \S", docstring):
        faults.append("the docstring names no source")
    if len(function.body) != 2 or not isinstance(function.body[1], ast.Return) or function.body[1].value is None:
        return [*faults, "is not one docstring and one return"]
    result = function.body[1].value
    used = {node.id for node in ast.walk(result) if isinstance(node, ast.Name)}
    parameters = [argument.arg for argument in given.kwonlyargs]
    faults += [f"does not use {name}" for name in parameters if name not in used]
    return faults + _expression_faults(result, set(parameters), known)


def _expression_faults(node: ast.expr, names: set[str], known: set[str]) -> list[str]:
    """Return what in an expression is none of: + - * // %, a number, a parameter, a call of a formula or helper."""
    match node:
        case ast.BinOp(left, operator, right) if isinstance(operator, OPERATORS):
            parts = [left, right]
        case ast.UnaryOp(ast.USub(), operand):
            parts = [operand]
        case ast.Constant(int() | float() as value) if not isinstance(value, bool):
            parts = []
        case ast.Name(name) if name in names:
            parts = []
        case ast.Call(ast.Name("choice"), [ast.Compare(left, _, others), *branches], []) if "choice" in known:
            parts = [left, *others, *branches]
        case ast.Call(ast.Name("series"), [count, ast.Lambda(own, body)], []) if "series" in known:
            parts, names = [count, body], names | {argument.arg for argument in own.args}
        case ast.Call(ast.Name(name), arguments, keywords) if name in known and all(word.arg for word in keywords):
            parts = [*arguments, *(word.value for word in keywords)]
        case _:
            return [f"may not hold {ast.unparse(node)}"]
    return [fault for part in parts for fault in _expression_faults(part, names, known)]


def _all_formulas() -> set[str]:
    return {
        f"{path.stem}.{node.name}"
        for path in FORMULA_FILES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize("path", FORMULA_FILES, ids=lambda path: path.stem)
def test_formulas_are_single_expressions_with_unit_and_source(path):
    known = HELPERS | {name.partition(".")[2] for name in _all_formulas()}
    assert formula_faults(path.read_text(encoding="utf-8"), known) == []


def formulas_named(source: str) -> set[str]:
    """Return `module.name` of each formula that a module imports, or reaches through an imported formula module."""
    named, modules = set(), {}
    nodes = list(ast.walk(ast.parse(source)))
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "dsa_ledger.formulas":
            modules |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dsa_ledger.formulas."):
            named |= {f"{(node.module or '').rpartition('.')[2]}.{alias.name}" for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            named.add(f"{modules[node.value.id]}.{node.attr}")
    return named


def test_every_formula_is_used():
    """A formula is used where the account or an engine names it, or another formula calls it."""
    used = set()
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        used |= formulas_named(source)
        if path in FORMULA_FILES:
            calls = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
            used |= {f"{path.stem}.{called.id}" for called in calls if isinstance(called, ast.Name)}
    assert sorted(_all_formulas() - used) == []


def test_a_formula_is_named_by_import_or_attribute_only():
    source = (
        "from dsa_ledger.formulas import pool as p\nfrom dsa_ledger.formulas.step import a\nblocks = p.tokens + q.pages"
    )
    assert formulas_named(source) == {"pool.tokens", "step.a"}


GOOD = '"""Module."""\ndef a(*, b: int) -> int:\n    """Return b [B]. Source: c."""\n    return {0}\n'


@pytest.mark.parametrize(
    "body", ["b + 1", "-(-b // 64)", "choice(b < 3, b, 0)", "series(b, lambda i: i * b)", "a(b=b)"]
)
def test_a_good_formula_passes(body):
    assert formula_faults(GOOD.format(body), HELPERS) == []


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (GOOD.format("b / 2"), "may not hold b / 2"),
        (GOOD.format("b ** 2"), "may not hold b ** 2"),
        (GOOD.format("b if b else 0"), "may not hold"),
        (GOOD.format("max(b, 1)"), "may not hold max"),
        (GOOD.format("b < 3"), "may not hold b < 3"),
        (GOOD.format("b * PAGE"), "may not hold PAGE"),
        (GOOD.format("b[0]"), "may not hold b[0]"),
        (GOOD.format("b and True"), "may not hold"),
        (GOOD.format("a(**b)"), "may not hold a(**b)"),
        (GOOD.format("a(*b)"), "may not hold *b"),
        (GOOD.format("7"), "does not use b"),
        (GOOD.format("b").replace("b: int", "b: int = 1"), "has a default"),
        (GOOD.format("b").replace("*, b", "b"), "keyword-only"),
        (GOOD.format("b").replace(" [B]", ""), "no unit"),
        (GOOD.format("b").replace("Source: c", "From c"), "no source"),
        (GOOD.format("b").replace("    return", "    b = 1\n    return"), "one return"),
        (GOOD.format("b") + "PAGE = 64\n", "PAGE = 64"),
        (GOOD.format("b") + "import math\n", "import math"),
        (GOOD.format("b") + "from dsa_ledger.units import GIB\n", "dsa_ledger.units"),
    ],
)
def test_a_bad_formula_is_found(source, complaint):
    assert any(complaint in fault for fault in formula_faults(source, HELPERS))
