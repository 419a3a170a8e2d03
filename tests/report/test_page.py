"""The page as a file: complete in itself, with a policy that lets only our script run."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

from calmix.report.page import _ASSETS, _SCRIPTS, render_page, write_page


class Seen(HTMLParser):
    """What a parser sees: elements with their attributes, and the content of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.content: dict[str, list[str]] = {"script": [], "style": []}
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag if tag in self.content else ""
        if self._inside:
            self.content[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.content[self._inside][-1] += data


def digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def policy_of(seen: Seen) -> str:
    (policy,) = [a["content"] for t, a in seen.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy
    return policy


def rendered(**data: object) -> str:
    return render_page("base.html", data=data)


def test_the_policy_names_our_script_and_style_and_nothing_else() -> None:
    seen = Seen(rendered())
    policy = policy_of(seen)
    _, script = seen.content["script"]
    assert f"script-src '{digest(script)}';" in policy
    assert f"style-src '{digest(seen.content['style'][0])}';" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert "http" not in policy


def test_the_policy_stands_before_anything_it_is_about() -> None:
    tags = [tag for tag, _ in Seen(rendered()).elements]
    assert tags.index("meta") < tags.index("style") < tags.index("script")


def test_nothing_is_fetched_and_nothing_is_styled_or_handled_inline() -> None:
    for tag, attributes in Seen(rendered()).elements:
        assert "style" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:,")), (tag, attributes)


def test_hostile_data_stays_data() -> None:
    seen = Seen(rendered(text="</script><script>alert(1)</script><!--"))
    assert len(seen.content["script"]) == 2
    assert "alert(1)" in seen.content["script"][0]


def test_our_files_generate_no_code_and_put_no_text_into_html() -> None:
    for name in _SCRIPTS:
        text = (_ASSETS / name).read_text(encoding="utf-8")
        for word in ("eval(", "new Function", "innerHTML", "outerHTML", "insertAdjacent", "document.write", "</script"):
            assert word not in text, f"{name}: {word}"
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), name


def test_every_script_of_the_folder_is_in_the_page() -> None:
    assert {path.name for path in _ASSETS.glob("*.js")} == set(_SCRIPTS)


def test_the_same_data_is_the_same_page(tmp_path: Path) -> None:
    write_page(tmp_path / "a.html", rendered(x=1))
    write_page(tmp_path / "b.html", rendered(x=1))
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
