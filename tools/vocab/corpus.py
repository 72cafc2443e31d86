"""The text weir's own vocabulary is trained on, and nothing else.

Every source may be used and shipped in this derived form; models/weir-sim/README.md
names the licences. A source is a name, a weight (how often its text counts) and a
generator of documents in a fixed order, so that two runs read the same bytes.
"""

import ast
import hashlib
import io
import json
import pathlib
import re
import subprocess
import sys
import sysconfig
import tarfile

DJANGO = "Django==5.2.6"
DJANGO_SHA256 = "da5e00372763193d73cecbf71084a3848458cecf4cee36b9a1e8d318d114a87b"


def fetch_django(cache):
    """Downloads the pinned source archive with pip, once, and checks its hash."""
    cache.mkdir(parents=True, exist_ok=True)
    archive = cache / "django-5.2.6.tar.gz"
    if not archive.exists():
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps",
             "--no-binary", ":all:", "--dest", str(cache), DJANGO],
            check=True)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != DJANGO_SHA256:
        sys.exit(f"{archive}: sha256 is {digest}, expected {DJANGO_SHA256}")
    return archive


def go_root():
    out = subprocess.run(["go", "env", "GOROOT"], check=True, capture_output=True, text=True)
    return pathlib.Path(out.stdout.strip())


def tree(root, *suffixes):
    """Text files under root in a fixed order, without vendored and test-only trees."""
    for path in sorted(root.rglob("*")):
        skip = {"vendor", "testdata", "test", "site-packages", "dist-packages", "tests"}
        if path.suffix not in suffixes or not path.is_file() or skip & set(path.parts):
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        if "Code generated" in text[:600] or len(text) > 400_000:
            continue
        yield text


def paragraphs(lines):
    """Joins the lines of each paragraph, so that words are not always first in a line."""
    block = []
    for line in lines + [""]:
        line = line.strip()
        if line:
            block.append(line)
        elif block:
            yield " ".join(block)
            block = []


def go_comments(root):
    for text in tree(root / "src", ".go"):
        lines = []
        for line in text.splitlines():
            line = line.strip()
            lines.append(line[2:] if line.startswith("// ") else "")
        prose = "\n".join(p for p in paragraphs(lines) if len(p) > 60 and "Copyright" not in p)
        if prose:
            yield prose


def html_text(root):
    for text in tree(root, ".html", ".md"):
        text = re.sub(r"(?s)<(script|style|pre)\b.*?</\1>", " ", text)
        yield "\n".join(paragraphs(re.sub(r"<[^>]+>", "", text).splitlines()))


def python_docstrings(root):
    for text in tree(root, ".py"):
        try:
            module = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(module):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                doc = ast.get_docstring(node)
                if doc and len(doc) > 60:
                    yield "\n".join(paragraphs(doc.splitlines()))


def language_reference():
    from pydoc_data import topics
    for name in sorted(topics.topics):
        yield "\n".join(paragraphs(topics.topics[name].splitlines()))


def licences():
    for path in sorted(pathlib.Path("/usr/share/common-licenses").iterdir()):
        yield "\n".join(paragraphs(path.read_text(encoding="utf-8").splitlines()))


def members(archive, want):
    with tarfile.open(archive) as tar:
        for info in sorted(tar.getmembers(), key=lambda m: m.name):
            if info.isfile() and want(info.name):
                data = tar.extractfile(info).read()
                yield io.TextIOWrapper(io.BytesIO(data), "utf-8", errors="ignore").read()


def django_docs(archive):
    for text in members(archive, lambda n: "/docs/" in n and n.endswith(".txt")):
        yield "\n".join(paragraphs(text.splitlines()))


def django_web(archive):
    yield from members(archive, lambda n: n.endswith((".html", ".js", ".css"))
                       and "/tests/" not in n and ".min." not in n)


def translations(archive):
    """The translated strings alone: the files' headers name people, who stay out."""
    quoted = re.compile(r'^(?:msgstr(?:\[\d\])? )?(".*")$')
    for text in members(archive, lambda n: n.endswith(".po")):
        out, current, inside = [], "", False
        for line in text.splitlines() + ["msgid"]:
            if line.startswith("msgstr"):
                inside, current = True, ""
            elif not line.startswith('"'):
                if inside and current and "Content-Type:" not in current:
                    out.append(current)
                inside = False
            match = quoted.match(line)
            if inside and match:
                try:
                    current += json.loads(match.group(1))
                except json.JSONDecodeError:
                    current = ""
        if out:
            yield "\n".join(out)


def sources(cache):
    archive = fetch_django(cache)
    go, stdlib = go_root(), pathlib.Path(sysconfig.get_paths()["stdlib"])
    return [
        ("go comments", 4, lambda: go_comments(go)),
        ("go documents", 2, lambda: html_text(go / "doc")),
        ("go sources", 1, lambda: tree(go / "src", ".go", ".s", ".sh")),
        ("python docstrings", 4, lambda: python_docstrings(stdlib)),
        ("python language reference", 8, language_reference),
        ("python sources", 1, lambda: tree(stdlib, ".py")),
        ("licences", 2, licences),
        ("django manual", 8, lambda: django_docs(archive)),
        ("django web sources", 1, lambda: django_web(archive)),
        ("django translations", 3, lambda: translations(archive)),
    ]
