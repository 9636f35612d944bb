"""A run takes a directory for itself, and only one it may."""

from __future__ import annotations

from pathlib import Path

import pytest

from trunq_demo.place import Place, PlaceUnusable


def test_a_run_clears_away_the_one_before_but_not_its_database(tmp_path: Path) -> None:
    place = Place(tmp_path / "demo")
    with place.taken():
        for kept in (place.database, place.lake, place.checkpoint):
            kept.mkdir()
        place.report.write_text("old")
    with place.taken():
        assert place.database.exists()
        assert not place.lake.exists()
        assert not place.checkpoint.exists()
        assert not place.report.exists()
        assert place.logs.is_dir()


def test_a_directory_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(PlaceUnusable, match=r"holds other things \(thesis\.tex\)"), Place(tmp_path).taken():
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_two_runs_do_not_share_a_directory(tmp_path: Path) -> None:
    first, second = Place(tmp_path / "demo"), Place(tmp_path / "demo")
    with first.taken(), pytest.raises(PlaceUnusable, match="Another trunq demo runs in"), second.taken():
        pass


def test_a_directory_that_cannot_be_made_is_told() -> None:
    with (
        pytest.raises(PlaceUnusable, match=r"The demo cannot write to /proc/demo"),
        Place(Path("/proc/demo")).taken(),
    ):
        pass


def test_a_file_in_its_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("a file")
    with pytest.raises(PlaceUnusable, match="The demo cannot write to"), Place(tmp_path / "demo").taken():
        pass
