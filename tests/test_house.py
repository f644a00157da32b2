"""The rules of the house: who imports whom, what may share a name, and what no file does."""

import ast
import graphlib
import importlib.machinery
import importlib.util
import pathlib
import re
import sys
import types

import pytest

from tests.conftest import fail_if_missing, is_asked_for, other_eighths

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "keras_transformer"
MAP = (PACKAGE / "README.md").read_text()
PURE = {"ops", "layers", "models"}  # Keras alone, so that they run on every backend
OF_ONE_BACKEND = {
    f"ops/{name}.py" for name in ("chunked_attention", "compiled", "fused_attention", "internals")
}
NUMPY = {"models"}  # for numbers that are known when a model is built


def arrows():
    """{room: the rooms that it may import}, itself among them, as the map has them."""
    direct = {"files": set(), "arguments": set(), "worker_pool": set()}
    for left, right in re.findall(r"^(\S.*?) +-> (.*)$", MAP, re.MULTILINE):
        targets = {name.removesuffix(".py") for name in re.findall(r"(\w+(?:\.py)?)/?", right)}
        for room in re.findall(r"(\w+)/", left):
            direct[room] = targets

    def reached(room):
        return {room}.union(*(reached(target) for target in direct[room]))

    return {room: reached(room) for room in direct}


def files(*folders):
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def imports(path):
    """The modules that a file imports anywhere in it, also within functions.

    Imports within train/ are relative: it is installed under another name.
    """
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level or package[0] == "train", f"{path}: imports are absolute"
            inside = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*inside, *filter(None, [node.module])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def room_of(path):
    relative = path.relative_to(ROOT)
    return relative.parts[1].removesuffix(".py") if relative.parts[0] != "train" else "train"


def test_the_map_has_every_room():
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert rooms - {"__init__", "__pycache__", "README"} == set(arrows()) - {"train"}


def test_the_docs_name_files_and_what_they_define():
    """In "Find your way", one of the files of a row defines each of its other names."""
    table = (ROOT / "docs" / "index.md").read_text("utf-8").partition("## Find your way\n")[2]
    sources = {f"/{path.relative_to(ROOT)}": path for path in files("keras_transformer", "train")}
    count = 0
    for way in re.findall(r"^\| .* \| (.*) \|$", table, re.MULTILINE):
        names = set(re.findall(r"`(.+?)`", way))
        texts = []
        for name in {name for name in names if name.endswith(".py")}:
            found = [path for place, path in sources.items() if place.endswith(f"/{name}")]
            assert found, name
            texts += [path.read_text("utf-8") for path in found]
            names.remove(name)
        for name in names:
            defined = re.compile(rf"(def|class) {name}\b|^{name} = ", re.MULTILINE)
            assert any(map(defined.search, texts)), name
        count += len(texts)
    assert count > 10


@pytest.mark.parametrize("room", arrows())
def test_a_room_imports_only_the_rooms_below(room):
    folder = ROOT / "train" if room == "train" else PACKAGE
    paths = [path for path in sorted(folder.rglob("*.py")) if room_of(path) == room]
    assert paths
    for path in paths:
        for name in imports(path):
            top, *rest = name.split(".")
            if top == "keras_transformer" and rest:
                assert room == "train" or rest[0] in arrows()[room], f"{path}: {name}"
            assert top != "tests" and (top != "train" or room == "train"), f"{path}: {name}"


def test_no_modules_import_each_other():
    """Not in a circle of any length, neither within functions nor when first used."""
    modules = {}
    for path in files("keras_transformer", "train"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        modules[".".join(parts).removesuffix(".__init__")] = path
    graph = {}
    for module, path in modules.items():
        deferred = re.findall(r'(?:Deferred|import_module)\(f?"(.+?)"', path.read_text("utf-8"))
        package = ".".join(path.relative_to(ROOT).parent.parts)
        names = {*imports(path), *(name.replace("{__package__}", package) for name in deferred)}
        # A package is not used by what imports a module of it.
        packages = {name.rpartition(".")[0] for name in names & modules.keys()}
        graph[module] = (names - packages - {module}) & modules.keys()
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError
    assert sum(map(len, graph.values())) > 500


@pytest.mark.parametrize("room", sorted(PURE))
def test_layers_and_models_are_written_in_keras_alone(room):
    allowed = {"keras", "keras_transformer", *sys.stdlib_module_names}
    allowed |= {"numpy"} if room in NUMPY else set()
    for path in files(f"keras_transformer/{room}"):
        tops = {name.split(".")[0] for name in imports(path)}
        if f"{room}/{path.name}" in OF_ONE_BACKEND:
            tops -= {"tensorflow", "jax"}
        assert tops <= allowed, f"{path}: {tops - allowed}"


def test_batches_are_made_without_tensorflow():
    """`data/` imports it in what packs segments in the graph, and within functions."""
    for path in files("keras_transformer/data"):
        body = ast.parse(path.read_text("utf-8")).body
        names = [alias.name for node in body for alias in getattr(node, "names", ())]
        assert path.name == "segments.py" or "tensorflow" not in names, path


def test_no_module_has_the_name_of_something_its_package_exports():
    """`keras_transformer.models.translation` was a module and a function, whichever came last."""
    count = 0
    for init in files("keras_transformer", "train"):
        if init.name == "__init__.py":
            body = ast.walk(ast.parse(init.read_text("utf-8")))
            found = [node.names for node in body if isinstance(node, ast.ImportFrom)]
            exported = {alias.asname or alias.name for names in found for alias in names}
            modules = {path.stem for path in init.parent.iterdir() if path.suffix in (".py", "")}
            assert not exported & modules, f"{init}: {exported & modules}"
            count += len(exported)
    assert count > 100


def test_no_two_classes_of_the_library_have_one_name():
    found = {}
    for path in files("keras_transformer"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert not {name: paths for name, paths in found.items() if len(paths) > 1}


def test_the_library_inspects_no_signatures():
    """Only the stacks declare one: the arguments of their blocks, which are declared there."""
    for path in files("keras_transformer"):
        allowed = path == PACKAGE / "layers" / "block.py"
        assert allowed or "inspect" not in imports(path), path


def test_comprehensions_call_no_super():
    """Before Python 3.12 `super()` of a comprehension does not know the class."""
    for path in files("keras_transformer", "train", "tests"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            parts = [getattr(node, name, None) for name in ("elt", "key", "value")]
            if getattr(node, "generators", None):
                called = [ast.unparse(part) for part in parts if isinstance(part, ast.AST)]
                assert "super()" not in " ".join(called), f"{path}:{node.lineno}"


def test_production_has_no_mocks():
    for path in files("keras_transformer", "train"):
        assert not [name for name in imports(path) if name.startswith("unittest")], path


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("could not import 'tokenizers'", "failed"),
        ("'transformers' has __version__ '4.57', required is: '5'", "failed"),
        ("needs Chromium or Chrome", "failed"),
        ("needs another version of TensorFlow", "skipped"),
    ],
)
def test_a_missing_library_skips_no_test_in_ci(monkeypatch, reason, outcome):
    def report():
        report = types.SimpleNamespace(skipped=True, outcome="skipped", longrepr=reason)
        fail_if_missing(report)
        return report.outcome

    monkeypatch.delenv("KERAS_TRANSFORMER_COMPLETE", raising=False)
    assert report() == "skipped"
    monkeypatch.setenv("KERAS_TRANSFORMER_COMPLETE", "1")
    assert report() == outcome
    assert "export KERAS_TRANSFORMER_COMPLETE=1" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize(
    ("marks", "asked"),
    [
        ((), {"", "slow", "oracle", "soak", "slow or oracle"}),
        (("slow",), {"slow", "slow or oracle"}),
        (("slow", "oracle"), {"oracle", "slow or oracle"}),
        (("slow", "oracle", "soak"), {"soak"}),
    ],
)
def test_a_test_runs_where_its_rarest_tier_is_named(marks, asked):
    item = types.SimpleNamespace(get_closest_marker=lambda mark: mark in marks)
    expressions = ("", "slow", "oracle", "soak", "slow or oracle")
    assert {each for each in expressions if is_asked_for(item, each)} == asked


def test_eight_commits_run_all_of_soak():
    def item(index):
        return types.SimpleNamespace(get_closest_marker=lambda mark: mark == "soak" and index % 3)

    items = [item(index) for index in range(50)]
    left_out = [each for number in range(13, 21) for each in other_eighths(items, number)]
    assert [left_out.count(each) for each in items] == [7 * bool(i % 3) for i in range(50)]


def test_mutants_are_other_code():
    loader = importlib.machinery.SourceFileLoader("mutants", str(ROOT / ".ci" / "mutants"))
    spec = importlib.util.spec_from_loader("mutants", loader)
    mutants = importlib.util.module_from_spec(spec)
    loader.exec_module(mutants)
    changed = {
        "a < b": {"a > b"}, "a is b": {"a is not b"}, "a or b": {"a and b"}, "True": {"False"},
        "0.5": {"2.0"}, "7": {"8", "6"}, "f(a, b, c)": {"f(b, a, c)"}, "f(a, a)": set(),
        "f(*a, b)": set(), "a.b = c": {"pass"}, "a += b": {"pass"}, "raise a": {"pass"},
        "a = b": set(), "'a'": set(), "a < b < c": set(), "a(b);": {"pass"},
    }  # fmt: skip
    for code, expected in changed.items():
        [node] = ast.parse(code).body
        node = node.value if isinstance(node, ast.Expr) and not code.endswith(";") else node
        assert {ast.unparse(new) for _, new in mutants.changes(node)} == expected, code


def test_what_a_context_changes_is_undone_after_an_error():
    """A `yield` is in a `try` or a `with`, unless nothing of Python's is to be undone."""
    nothing_to_undo = {"skips", "_ids_checked"}  # graph operations; no state
    count = 0
    for path in files("keras_transformer", "train"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            decorators = map(ast.unparse, getattr(node, "decorator_list", ()))
            if "contextlib.contextmanager" not in decorators or node.name in nothing_to_undo:
                continue
            guards = [each for each in ast.walk(node) if isinstance(each, ast.Try | ast.With)]
            guarded = {id(inner) for guard in guards for inner in ast.walk(guard)}
            yields = [each for each in ast.walk(node) if isinstance(each, ast.Yield)]
            last = max(yields, key=lambda each: each.lineno)
            assert id(last) in guarded, f"{path}: {node.name}"
            count += 1
    assert count > 5
