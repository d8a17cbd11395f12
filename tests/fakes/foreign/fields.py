"""The names of the fields of each engine's requests, recorded from its source (`fields.json`).

To renew them, from a checkout or a wheel of the engine:

    python -m tests.fakes.foreign.fields FILE...

It prints the names in each request model of these files: classes of Python, structs of Go and Rust, and the fields of
llama-server's schema. Aliases of Python's models, and what is read by hand (SGLang's `reasoning`, llama-server's chat),
are added by hand.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Recorded:
    """One engine's: `version` and `source` say of which, `fields` are by API."""

    version: str
    source: str
    fields: dict[str, frozenset[str]]


def _recorded() -> dict[str, Recorded]:
    read = json.loads(Path(__file__).with_suffix(".json").read_text())
    return {
        kind: Recorded(one["version"], one["source"], {api: frozenset(names) for api, names in one["fields"].items()})
        for kind, one in read.items()
    }


RECORDED = _recorded()


def _python(text: str) -> Iterator[tuple[str, set[str]]]:
    classes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}

    def names(name: str) -> set[str]:
        node = classes.get(name)
        if node is None:
            return set()
        own = [ast.unparse(part.target) for part in node.body if isinstance(part, ast.AnnAssign)]
        return {field for field in own if field[0] != "_"}.union(*(names(ast.unparse(base)) for base in node.bases))

    return ((name, names(name)) for name in classes if name.endswith("Request"))


def _go(text: str) -> Iterator[tuple[str, set[str]]]:
    for name, body in re.findall(r"^type (\w*Request) struct \{\n(.*?)^\}", text, re.DOTALL | re.MULTILINE):
        yield name, set(re.findall(r'json:"([^",]+)', body))


def _rust(text: str) -> Iterator[tuple[str, set[str]]]:
    for name, body in re.findall(r"struct (\w*Request) \{\n(.*?)^\}", text, re.DOTALL | re.MULTILINE):
        yield name, {*re.findall(r"^    pub (\w+):", body, re.MULTILINE), *re.findall(r'alias = "(\w+)"', body)}


def _cpp(text: str) -> Iterator[tuple[str, set[str]]]:
    yield "schema", set(re.findall(r'^\s*(?:add\(\(new field_\w+|->add_alias)\("(\w+)"', text, re.MULTILINE))


_READERS = {".py": _python, ".go": _go, ".rs": _rust, ".cpp": _cpp}


def main() -> None:
    """Print the names in the files that are given."""
    for path in map(Path, sys.argv[1:]):
        for model, names in _READERS[path.suffix](path.read_text()):
            print(f"{path.name} {model}: {json.dumps(sorted(names))}")


if __name__ == "__main__":
    main()
