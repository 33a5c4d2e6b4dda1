"""The rooms' import direction, proven from the source by an AST walk, and what an import really
loads.

Build side and run side meet in the artifact only: serving a compiled model needs no compiler.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "src" / "pumice"

_BASE = frozenset(
    {"_version", "errors", "dtypes", "plans", "artifact", "artifact_files", "files", "processes"}
    | {"event_loop"}
)
_OPERATORS = _BASE | {"targets", "quantization", "binary", "operators"}
# `text` turns a file's vocabulary into the artifact's tokenizer.json, and reads that again.
_BUILD = _OPERATORS | {"tuning", "models", "weights", "compiler", "text"}
_RUN = _BASE | {"targets", "runtime", "text", "engine"}

# Room (or module beside the rooms) → rooms that it may import, besides itself.
ALLOWED: Mapping[str, frozenset[str]] = {
    "_version": frozenset(),
    "errors": frozenset(),
    "settings": frozenset({"errors"}),
    "dtypes": frozenset({"errors"}),
    "plans": frozenset({"errors"}),
    "artifact": frozenset({"errors", "plans"}),
    "artifact_files": frozenset({"errors", "artifact"}),
    "files": frozenset({"errors"}),
    "processes": frozenset(),
    "event_loop": frozenset(),
    "targets": _BASE,
    "binary": _BASE | {"targets"},
    "emulator": _BASE | {"targets", "binary"},
    "quantization": _BASE | {"targets"},
    "operators": _BASE | {"targets", "quantization", "binary"},
    "tuning": _OPERATORS,
    "models": _OPERATORS,
    "weights": _OPERATORS | {"models"},
    "compiler": _BUILD,
    "runtime": _BASE | {"targets", "emulator"},  # emulator: by name, see LAZY
    "text": _BASE | {"targets"},
    "engine": _RUN,
    "server": _RUN,
    "compile_worker": _BUILD | {"settings"},
    "prepare": _BUILD | {"runtime"},  # runtime: which GPU `native` means
    "summary": _BUILD | {"runtime"},  # runtime: what is free
    "device_choice": _BASE | {"targets", "runtime", "prepare"},
    # compiler: kernels for CPU tensors. settings: the place of a user's measured rows.
    "torch": _OPERATORS | {"tuning", "runtime", "compiler", "settings"},
    "verify": _OPERATORS | {"runtime", "binary", "emulator"},
    "bench": _BUILD | _RUN | {"prepare", "torch", "verify"},
    "cli": _BUILD
    | _RUN
    | {"prepare", "summary", "device_choice", "bench", "server", "torch", "settings", "verify"},
    "api": _RUN | {"prepare", "summary", "device_choice", "settings", "weights"},
    "__main__": frozenset({"cli"}),
}

# Room → rooms that it may name in a "module:name" string only, as nobody may need them.
LAZY: Mapping[str, frozenset[str]] = {"runtime": frozenset({"emulator"})}

# Package → the modules that may import it, by prefix.
RESTRICTED: Mapping[str, tuple[str, ...]] = {
    "tvm": ("operators", "tuning", "models", "compiler", "bench.microkernels"),
    "tvm_ffi": ("operators", "tuning", "models", "compiler", "bench.microkernels"),
    "torch": ("torch", "bench.operators", "cli.gpu"),
    "transformers": (),
    "tinygrad": ("emulator",),
    "triton": ("operators.triton.build", "compiler.gpu", "torch", "bench.operators", "cli.gpu"),
    "matplotlib": ("bench.plot", "bench.serving_plot", "bench.operators.picture"),
    "httptools": ("bench.http_client", "server"),
    "uvloop": ("event_loop",),
    "llguidance": ("engine.grammar_matcher",),
    "typer": ("cli",),
    "fastapi": ("server",),
    "starlette": ("server",),
    "uvicorn": ("server",),
    "pydantic": ("server",),
    "prometheus_client": ("server",),
    "rich": ("cli", "compiler.progress"),
}
# Modules that a file of cli/ may import while `pumice --help` runs, besides the standard library.
LIGHT = ("typer", "pumice._version", "pumice.errors", "pumice.settings", "pumice.cli")


@dataclass(frozen=True)
class Import:
    """target: a dotted module. eager: at import time. names: what is imported from it. named: by a
    string.
    """

    module: str
    target: str
    line: int
    eager: bool
    names: tuple[str, ...] = ()
    named: bool = False

    @property
    def place(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def module_name(path: Path, root: Path = ROOT) -> str:
    """src/pumice/a/b.py → "a.b"; a package's __init__ is the package itself."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return bool(name == "TYPE_CHECKING")


def imports_of(module: str, source: str, *, package: bool = False) -> Iterator[Import]:
    """Every import of a module, wherever it stands. Strings "pumice.a.b:name" count as lazy
    imports.
    """
    own = ["pumice", *(module.split(".") if module != "__init__" else [])]

    def walk(node: ast.AST, eager: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, alias.name, node.lineno, eager)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = own if package else own[:-1]
                up = up[: len(up) - (node.level - 1)]
                base = ".".join([*up, *([base] if base else [])])
            if base == "pumice":
                for alias in node.names:
                    yield Import(module, f"pumice.{alias.name}", node.lineno, eager)
            else:
                names = tuple(alias.name for alias in node.names)
                yield Import(module, base, node.lineno, eager, names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            head, colon, name = node.value.partition(":")
            dotted = all(part.isidentifier() for part in head.split("."))
            if colon and head.startswith("pumice.") and dotted and name.isidentifier():
                yield Import(module, head, node.lineno, False, named=True)
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            for child in node.body:
                yield from walk(child, False)
            for child in node.orelse:
                yield from walk(child, eager)
            return
        for child in ast.iter_child_nodes(node):
            yield from walk(child, eager and not inside)

    yield from walk(ast.parse(source), True)


def room_of(dotted: str) -> str | None:
    """The room of a module of ours ("pumice.a.b" → "a"), None for another package's."""
    parts = dotted.split(".")
    if parts[0] != "pumice":
        return None
    return parts[1] if len(parts) > 1 else "__init__"


def direction_faults(imports: list[Import]) -> list[str]:
    """Imports against the rooms' order."""
    faults = []
    for item in imports:
        room = item.module.split(".")[0]
        target = room_of(item.target)
        if target is None or target == room or room == "__init__":
            continue
        if target not in ALLOWED.get(room, frozenset()):
            faults.append(f"{item.place}: {room} may not import {target}")
    return faults


def lazy_faults(imports: list[Import]) -> list[str]:
    """Import statements where a name in a string is what is allowed."""
    return [
        f"{item.place}: a string must name it"
        for item in imports
        if not item.named
        and room_of(item.target) in LAZY.get(item.module.split(".")[0], frozenset())
    ]


def package_faults(imports: list[Import]) -> list[str]:
    """Imports of restricted packages."""
    faults = []
    for item in imports:
        package = item.target.split(".")[0]
        if package not in RESTRICTED:
            continue
        if package == "triton" and (
            item.module.endswith("_triton") or item.module.startswith("compiler.pipelines.")
        ):
            continue
        allowed = RESTRICTED[package]
        if not any(item.module == a or item.module.startswith(a + ".") for a in allowed):
            faults.append(f"{item.place}, which only {allowed or 'tests'} may")
    return faults


def heavy_faults(imports: list[Import]) -> list[str]:
    """Eager imports of cli/ beyond the standard library, typer and light modules."""
    return [
        item.place
        for item in imports
        if item.eager
        and item.module.split(".")[0] in ("cli", "__main__")
        and item.target.split(".")[0] not in sys.stdlib_module_names
        and not any(item.target == name or item.target.startswith(name + ".") for name in LIGHT)
    ]


def environment_faults(module: str, source: str) -> list[str]:
    """Uses of the environment outside settings.py and cli/."""
    if module.split(".")[0] in ("cli", "settings"):
        return []
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    faults = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in names:
            base = node.value
            if isinstance(base, ast.Name) and base.id == "os":
                faults.append(f"{module}:{node.lineno} uses os.{node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            faults += [
                f"{module}:{node.lineno} imports os.{a.name}" for a in node.names if a.name in names
            ]
    return faults


def cycle(graph: Mapping[str, set[str]]) -> list[str] | None:
    """One cycle of a directed graph, or None."""
    state: dict[str, int] = {}
    path: list[str] = []

    def visit(node: str) -> list[str] | None:
        state[node] = 1
        path.append(node)
        for successor in sorted(graph.get(node, ())):
            if state.get(successor) == 1:
                return [*path[path.index(successor) :], successor]
            if successor not in state and (found := visit(successor)):
                return found
        path.pop()
        state[node] = 2
        return None

    for node in sorted(graph):
        if node not in state and (found := visit(node)):
            return found
    return None


SOURCES = {
    module_name(path): (path.read_text(encoding="utf-8"), path.name == "__init__.py")
    for path in sorted(ROOT.rglob("*.py"))
}
IMPORTS = [
    item
    for name, (source, package) in SOURCES.items()
    for item in imports_of(name, source, package=package)
]


def test_rooms_are_known() -> None:
    rooms = {name.split(".")[0] for name in SOURCES} - {"__init__"}
    assert rooms <= set(ALLOWED), f"rooms without a rule: {sorted(rooms - set(ALLOWED))}"
    assert len(IMPORTS) > 100


def test_import_direction() -> None:
    assert direction_faults(IMPORTS) == []


def test_lazy_rooms_are_named_only() -> None:
    assert lazy_faults(IMPORTS) == []


def test_the_rules_themselves_have_no_cycle() -> None:
    assert cycle({room: set(allowed - {room}) for room, allowed in ALLOWED.items()}) is None


def test_modules_have_no_import_cycle() -> None:
    graph: dict[str, set[str]] = {name: set() for name in SOURCES}
    for item in IMPORTS:
        target = item.target.removeprefix("pumice.")
        if not item.eager or not item.target.startswith("pumice."):
            continue
        submodules = {f"{target}.{name}" for name in item.names} & set(SOURCES)
        graph[item.module] |= submodules  # `from package import submodule` needs no more of it
        if target in graph and len(submodules) < max(1, len(item.names)):
            graph[item.module].add(target)
    graph.pop("__init__", None)
    assert cycle(graph) is None


def test_restricted_packages() -> None:
    assert package_faults(IMPORTS) == []


def test_command_line_files_import_nothing_heavy() -> None:
    assert heavy_faults(IMPORTS) == []


def test_only_the_command_line_reads_the_environment() -> None:
    faults = [f for name, (source, _) in SOURCES.items() for f in environment_faults(name, source)]
    assert faults == []


@pytest.mark.parametrize(
    ("module", "source", "check"),
    [
        ("runtime.x", "def f():\n    from pumice.compiler import compile", direction_faults),
        ("runtime.x", "from pumice import compiler", direction_faults),
        ("runtime.x", "from ..compiler import compile", direction_faults),
        ("errors", "import pumice.dtypes", direction_faults),
        ("engine.x", "TABLE = ('pumice.models.llama:MODEL',)", direction_faults),
        ("runtime.x", "def f():\n    from pumice.emulator.hip import library", lazy_faults),
        ("operators.x.y", "if TYPE_CHECKING:\n    from pumice.models import a", direction_faults),
        ("runtime.x", "import tvm.runtime", package_faults),
        ("operators.linear.kernel_tir", "import triton", package_faults),
        ("bench.x", "import matplotlib.pyplot", package_faults),
        ("cli.x", "import numpy as np", heavy_faults),
        ("cli.x", "from pumice.runtime.load import load", heavy_faults),
    ],
)
def test_a_fault_is_found(module: str, source: str, check: object) -> None:
    assert callable(check)
    assert len(check(list(imports_of(module, source)))) == 1


@pytest.mark.parametrize(
    "source", ["import os\nos.environ['A']", "import os\nos.getenv('A')", "from os import environ"]
)
def test_a_use_of_the_environment_is_found(source: str) -> None:
    assert len(environment_faults("runtime.x", source)) == 1
    assert environment_faults("cli.x", source) == []


def test_a_cycle_is_found() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


@pytest.mark.parametrize(
    ("modules", "forbidden"),
    [
        ("pumice.runtime.load", "tvm tvm_ffi torch transformers triton typer"),
        ("pumice.engine", "tvm tvm_ffi torch transformers triton typer llguidance"),
        ("pumice.text", "tvm tvm_ffi torch transformers triton typer"),
        ("pumice.server", "tvm tvm_ffi torch transformers triton typer rich"),
        ("pumice.server.parsers", "tvm tvm_ffi torch transformers triton typer numpy fastapi"),
        ("pumice", "tvm tvm_ffi torch transformers triton typer rich"),
        ("pumice.cli.app", "tvm tvm_ffi torch transformers triton rich numpy fastapi uvicorn"),
        ("pumice.api", "tvm tvm_ffi torch transformers triton typer rich"),
    ],
)
def test_what_an_import_loads(modules: str, forbidden: str) -> None:
    """Every module of a run-side room, imported in a fresh process."""
    names = [modules]
    if modules.count(".") == 1:
        room = modules.split(".")[1]
        names += [f"pumice.{name}" for name in SOURCES if name.startswith(f"{room}.")]
    code = (
        f"import sys, {', '.join(names)}\n"
        f"print(*sorted(set({forbidden.split()!r}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
