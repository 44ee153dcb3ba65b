"""Links of docs/*.md to files outside docs/: to a page of the site where there is one, else to the repository."""

import functools
import posixpath
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
README = re.compile(r"(plugins|recipes)/(\w+)/README\.md")


def _place(path: str) -> str | None:
    """The page of the site that shows a file of the repository, None if none does."""
    if match := README.fullmatch(path):
        return f"{match[1]}/{match[2]}.md"
    if path in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        return f"about-{path.lower()}"
    return "index.md" if path == "README.md" else path.removeprefix("docs/") if path.startswith("docs/") else None


def _copied(source: str) -> str:
    return (ROOT / source).read_text(encoding="utf-8")


_FILES = [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("[pr][le][uc][gi]*s/*/README.md"))]
_SOURCES = {str(_place(path)): path for path in [*_FILES, "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]}
PAGES = {page: functools.partial(_copied, source) for page, source in _SOURCES.items()}


def followed(markdown: str, page: str) -> str:
    """The text of a page with each relative link leading to a page of the site or to the repository.

    Raises:
        FileNotFoundError: the link leads to no file.
    """
    source = _SOURCES.get(page, f"docs/{page}")

    def target(match: re.Match[str]) -> str:
        path, hash_sign, anchor = match[1].partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return match[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if file.startswith("docs/") and source.startswith("docs/"):  # MkDocs checks these
            return match[0]
        if not (ROOT / file).exists():
            raise FileNotFoundError(f"{source} links to '{match[1]}', which does not exist")
        place = _place(file)
        kind = "tree" if (ROOT / file).is_dir() else "blob"
        to = posixpath.relpath(place, posixpath.dirname(page)) if place else f"{REPOSITORY}/{kind}/main/{file}"
        return f"]({to}{hash_sign}{anchor})"

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else re.sub(r"\]\(([^)\s]+)\)", target, part) for part in parts)
