"""The site: its sidebar is short, titles differ, questions have lasting addresses."""

from __future__ import annotations

import json
import re
import runpy
from difflib import SequenceMatcher
from functools import cache
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TOCTREE = re.compile(r"^```\{toctree\}\n((?::.*\n)*)\n?((?:.+\n)*)```$", re.M)
RST_TOCTREE = re.compile(r"^\.\. toctree::\n((?:   :.*\n)*)\n((?:   .+\n)*)", re.M)
#: Pages outside of the sidebar and the search.
ASIDE = ("decisions/", "appendix/")
#: Sentences on systems and GPUs, which pages include and README repeats.
INCLUDED = {file.stem: file for file in sorted((DOCS / "included").glob("*.md"))}


@cache
def pages() -> dict[str, str]:
    """Return the text of each page that is written by hand, by its name."""
    found = {}
    for kind in (
        "*.md",
        "*.rst",
        "notebooks/*.ipynb",
        "decisions/*.md",
        "appendix/*.md",
    ):
        for page in DOCS.glob(kind):
            name = page.relative_to(DOCS).with_suffix("").as_posix()
            text = page.read_text(encoding="utf-8")
            if kind.endswith("ipynb"):
                text = "".join(json.loads(text)["cells"][0]["source"])
            found[name] = text
    del found["README"]
    return found


def listed(name: str) -> list[tuple[str, list[str]]]:
    """Return options and entries of a page's tables of contents."""
    folder = name.rpartition("/")[0]
    return [
        (
            options,
            [
                re.sub(r"^.*<(.*)>$", r"\1", f"{folder}/{line.strip()}".lstrip("/"))
                for line in entries.split("\n")
                if line
            ],
        )
        for kind in (TOCTREE, RST_TOCTREE)
        for options, entries in kind.findall(pages()[name])
    ]


def title(text: str) -> str:
    heading = re.search(r"^# (.+)$|^(.+)\n=+$", text, re.MULTILINE)
    assert heading
    return (heading[1] or heading[2]).strip()


def test_the_sidebar_has_few_entries_in_few_groups():
    groups = listed("index")
    captions = [re.findall(":caption: (.+)", options) for options, _ in groups]
    assert captions == [["Use"], ["Understand"], ["Build"]]
    assert sum(len(entries) for _, entries in groups) <= 18


def test_every_page_is_in_the_contents_once():
    entries = [e for name in pages() for _, some in listed(name) for e in some]
    here = {name for name in pages() if not name.startswith(ASIDE)} - {"index"}
    assert sorted(here - set(entries)) == []
    assert sorted(e for e in set(entries) if entries.count(e) > 1) == []
    ours = [e for e in entries if not e.startswith("repository/")]
    assert sorted(set(ours) - set(pages())) == []


def words(text: str) -> str:
    """Return a title's words without their endings, in the order of the alphabet."""
    found = re.findall("[a-z]{3,}", text.lower())
    return " ".join(sorted(re.sub(r"(ing|ion|ed|es|s|e)$", "", word) for word in found))


def alike(one: str, other: str) -> bool:
    heads = [words(re.split(r"[:?]", text)[0]) for text in (one, other)]
    return SequenceMatcher(None, *heads).ratio() > 0.8


def test_no_two_pages_have_nearly_the_same_title():
    titles = [title(text) for text in pages().values()]
    assert len(titles) > 40
    assert [pair for pair in combinations(titles, 2) if alike(*pair)] == []


#: Addresses that are out in the world; a question may be added, none renamed.
QUESTIONS = """
are-the-bits-really-the-same why-do-other-compilers-differ
does-it-quantise-or-prune-my-model what-do-the-bits-depend-on
i-found-a-wrong-bit-what-now why-does-fit-need-rows are-my-rows-fast
why-is-the-first-call-slow how-do-i-switch-tuning-off how-do-i-see-what-fit-did
must-i-tune-again-after-training why-does-predict-return-labels
does-it-read-catboost may-i-pass-bytes-or-open-files which-models-are-refused
may-i-use-my-own-objective what-is-in-a-skforge-file may-another-version-load-a-file
does-loading-need-xgboost is-it-safe-to-use-threads-and-fork
how-much-memory-does-it-take does-it-run-on-spark-dask-or-ray where-does-it-run
does-it-need-a-c-compiler does-shap-work is-it-faster-for-me what-is-the-licence
"""


def test_questions_are_headings_whose_addresses_last():
    text = re.sub(r"^```.*?^```$", "", pages()["faq"], flags=re.M | re.S)
    assert not re.search(r"^\*\*", text, re.MULTILINE)
    headings = re.findall(r"^### (.+)$", text, re.MULTILINE)
    slugs = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]
    assert len({*slugs}) == len(slugs)
    assert [slug for slug in slugs if len(slug) > 36] == []
    assert [slug for slug in QUESTIONS.split() if slug not in slugs] == []


#: Words that only an included sentence has, and pages that have it in any case.
SPEAKS = {
    "systems": ("Windows|macOS", {"faq", "install", "when_not", "export"}),
    "gpus": (
        r"kernels? (has |have )?r[au]n on",
        {"faq", "gpu", "when_not"},
    ),
}


def lacks(texts: dict[str, str], subject: str) -> list[str]:
    """Return the pages that speak of a subject and do not include its sentence."""
    pattern, pages = SPEAKS[subject]
    include = f"```{{include}} included/{subject}.md\n```"
    speak = {name for name, text in texts.items() if re.search(pattern, text)} | pages
    # decisions are of a day, and threats.md says who owns files on Windows
    speak = {n for n in speak if n != "threats" and not n.startswith("decisions/")}
    return sorted(name for name in speak if texts[name].count(include) != 1)


def test_pages_include_one_sentence_on_systems_and_one_on_gpus():
    assert {*INCLUDED} == {*SPEAKS}
    for subject in SPEAKS:
        assert lacks(pages(), subject) == []


def test_a_page_with_words_of_its_own_is_found():
    planted = {**pages(), "start": "No kernel has run on a GPU. It runs on Windows."}
    assert lacks(planted, "gpus") == ["start"]
    assert lacks(planted, "systems") == ["start"]


def test_readme_has_the_included_sentences():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for file in INCLUDED.values():
        sentence = file.read_text(encoding="utf-8").strip()
        assert readme.count(f"- {sentence.replace('](', '](docs/')}") == 1


def slug(heading: str) -> str:
    """Return a heading's address on GitHub and on the site."""
    words = re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")


@cache
def addresses(file: Path) -> frozenset[str]:
    text = re.sub(
        r"^```.*?^```", "", file.read_text(encoding="utf-8"), flags=re.M | re.S
    )
    named = re.findall(r'<a id="([^"]+)">', text)
    return frozenset([*map(slug, re.findall(r"^#+ (.+)$", text, re.M)), *named])


def dead_links(file: Path) -> list[str]:
    """Return the links of a page that lead to no file or to no heading."""
    text = re.sub(
        r"^```.*?^```", "", file.read_text(encoding="utf-8"), flags=re.M | re.S
    )
    dead = []
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
        target = (file.parent / path).resolve() if path else file
        if not target.exists():
            dead.append(path)
        elif anchor and target.suffix == ".md" and anchor not in addresses(target):
            dead.append(f"{path}#{anchor}")
    return dead


LINKING = [
    "*.md",
    "docs/*.md",
    "docs/decisions/*.md",
    "docs/appendix/*.md",
    "benchmarks/**/*.md",
]
LINKING = sorted({file for pattern in LINKING for file in ROOT.glob(pattern)})


def test_every_link_leads_to_a_heading():
    assert len(LINKING) > 60
    found = {file.relative_to(ROOT).as_posix(): dead_links(file) for file in LINKING}
    assert {name: dead for name, dead in found.items() if dead} == {}


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# The page\n[a](other.md) [b](#the-page) [c](#the-pages)\n")
    assert dead_links(page) == ["other.md", "#the-pages"]


def test_folders_among_copied_pages_are_passed_over(tmp_path, monkeypatch):
    """Python leaves one beside the code that it runs."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "pages" / "__pycache__").mkdir(parents=True)
    (tmp_path / "pages" / "one.md").write_text("# One")
    conf = runpy.run_path(str(DOCS / "conf.py"))
    copy_pages = conf["copy_pages"]
    known = {"ROOT": tmp_path, "DOCS": tmp_path / "docs", "COPIED": ("pages",)}
    for name, value in known.items():
        monkeypatch.setitem(copy_pages.__globals__, name, value)
    copy_pages(None)
    copied = [*(tmp_path / "docs" / "repository").rglob("*.*")]
    assert [file.name for file in copied] == ["one.md"]
