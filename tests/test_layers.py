"""Lower layers never import upper ones, and no class name stands twice."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "gqe"
# Lowest first. What stands in one group may import each other.
LAYERS = [
    {"parsing", "redaction", "errors", "registry", "threads", "doctor", "progress"},
    {"embeddings", "formats", "filters", "page", "transfer", "query_options", "results"},
    {"neighbors"},
    {"aggregators"},
    {"source", "statistics", "negatives", "expansion", "staleness", "memory_budget", "row_cache"},
    {"rerank", "model_files", "methods"},
    {"targets", "retrieval", "models"},
    {"index"},
    {"datasets", "evaluation", "extraction"},
    {"training"},
    {"stores", "cluster", "server", "integrations", "reproduce", "planning"},
    {"cli"},
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
FILES = sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.name != "__init__.py")


def room_of(module: str) -> str:
    return module.split(".")[1]


def imports(path: Path) -> set[str]:
    """Rooms of the package that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "gqe":
            found |= {alias.name for alias in node.names if (SOURCE / alias.name).exists()}
            found |= {alias.name for alias in node.names if (SOURCE / f"{alias.name}.py").exists()}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gqe."):
            found.add(room_of(node.module))
        elif isinstance(node, ast.Import):
            found |= {room_of(alias.name) for alias in node.names if alias.name.startswith("gqe.")}
    return found


def test_every_room_has_a_layer():
    rooms = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in FILES}
    assert rooms - {"pretrained"} == set(LEVEL)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_is_imported_from_above(path: Path):
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    above = {room for room in imports(path) if LEVEL[room] > LEVEL[own]}
    assert not above


def test_no_class_name_stands_twice():
    names = Counter(
        node.name
        for path in FILES
        if "town" not in path.parts
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []
