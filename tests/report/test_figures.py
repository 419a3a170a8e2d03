"""What figures share: names say the format, text is drawn as it is, the same figure is the same file."""

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from calmix.errors import InputError
from calmix.report.figures import figure_format, literal, look, new_figure, save_figure


@pytest.mark.parametrize("name", ["fig", "fig.jpg", "fig.html", "fig.png.txt"])
def test_other_formats_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="PNG, SVG or PDF"):
        figure_format(name)


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("PDF", b"%PDF")])
def test_a_figure_is_the_same_file_each_time(tmp_path: Path, kind: str, start: bytes) -> None:
    for name in ("a", "b"):
        with look():
            figure = new_figure(2, 2)
            figure.add_subplot().set_title(literal("100 $ \x00 \\frac $x^{$"))
        save_figure(figure, tmp_path / f"{name}.{kind}")
    assert (tmp_path / f"a.{kind}").read_bytes().startswith(start)
    assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
