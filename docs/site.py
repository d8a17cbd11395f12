"""Builds these pages as a site, `build/site`, that a browser reads from the disk and that loads nothing from elsewhere.

GitHub shows the same pages. So they link to files of the repository by relative paths, and draw diagrams in Mermaid.
For the site each file that a page links to becomes a page of its own, and each diagram an image.
"""

import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import mmdr

_ROOT = Path(__file__).resolve().parent.parent
_DOCS = _ROOT / "docs"
_PAGES = _ROOT / "build" / "pages"
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")
_DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def collect(pages: Path) -> None:
    """Write all pages into a folder, and every file that they link to.

    Raises:
        FileNotFoundError: A page links to a file that is not there.
    """
    shutil.rmtree(pages, ignore_errors=True)
    waiting = [_DOCS / "adr", *sorted(_DOCS.glob("**/*.md"))]
    done = set(waiting)
    while waiting:
        source = waiting.pop()
        text, linked = _page(source)
        target = pages / _place(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            shutil.copy(source, target)
        else:
            _write(target, text)
        waiting += linked - done
        done |= linked


def _page(source: Path) -> tuple[str | None, set[Path]]:
    """A file as a page, None if it is shown as it is; and the files that it links to."""
    if source.is_dir():
        text = "\n".join((f"# {source.name}", "", *(_entry(each) for each in sorted(source.iterdir()))))
    elif source.suffix == ".md":
        text = source.read_text()
    elif source.is_relative_to(_DOCS):
        return None, set()
    else:
        title = source.relative_to(_ROOT)
        language = {".conf": "nginx", ".service": "ini"}.get(source.suffix, source.suffix[1:])
        return f"# {title}\n\n`````{language}\n{source.read_text()}`````\n", set()
    folder = source if source.is_dir() else source.parent
    linked: set[Path] = set()

    def moved(link: re.Match[str]) -> str:
        if re.match(r"\w+:", link[0]):
            return link[0]
        target = (folder / link[0]).resolve(strict=True)
        linked.add(target)
        return os.path.relpath(_place(target), _place(source).parent)

    return _LINK.sub(moved, text), linked


def _place(source: Path) -> Path:
    """Where a file stands among the pages."""
    if source.is_relative_to(_DOCS):
        place = source.relative_to(_DOCS)
        return place / "index.md" if source.is_dir() else place
    place = Path("repository") / source.relative_to(_ROOT)
    if source.is_dir():
        return place / "index.md"
    return place if source.suffix == ".md" else place.with_name(f"{place.name}.md")


def _entry(path: Path) -> str:
    """One line of a folder's page. Pages are listed by their headings."""
    title = path.read_text().partition("\n")[0].removeprefix("# ") if path.suffix == ".md" else path.name
    return f"- [{title}]({path.name})"


def _write(page: Path, text: str) -> None:
    """Write a page, and its diagrams as images beside it."""
    numbers = itertools.count(1)

    def drawn(diagram: re.Match[str]) -> str:
        image = page.with_name(f"{page.stem}-{next(numbers)}.svg")
        image.write_text(mmdr.render(diagram[1]).svg().replace("<svg ", '<svg style="background: white" ', 1))
        return f"![]({image.name})"

    page.write_text(_DIAGRAM.sub(drawn, text))


if __name__ == "__main__":
    collect(_PAGES)
    command = [Path(sys.executable).with_name("zensical"), "build", "--clean", "--strict"]
    sys.exit(subprocess.run(command, cwd=_ROOT, check=False).returncode)  # noqa: S603
