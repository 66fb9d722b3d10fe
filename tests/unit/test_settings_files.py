"""The annotated settings file and the page about settings are what the tree says."""

import re
import tomllib
from pathlib import Path

from worker.settings import load_settings
from worker.settings.annotated import offered, settings_page, settings_toml

ROOT = Path(__file__).parents[2]


def test_the_annotated_file_holds_exactly_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "gradstream.toml"
    path.write_text(settings_toml(), encoding="utf-8")
    written = load_settings(path, {}, environ={})
    plain = load_settings(None, {"model.features": '[{"name": "x"}]'}, environ={})
    shown, defaults = written.shown(), plain.shown()
    assert [f["name"] for f in shown.pop("model.features")] == ["distance", "carrier"]
    defaults.pop("model.features")
    assert shown == defaults


def test_the_annotated_file_has_every_key_that_this_version_offers() -> None:
    uncommented = re.sub(r"(?m)^# (\w+ = )", r"\1", settings_toml())
    tree = tomllib.loads(uncommented)
    assert {f"{section}.{key}" for section, keys in tree.items() for key in keys} == {k.dotted for k in offered()}


def test_the_page_about_settings_is_written_from_the_tree() -> None:
    """To write it again: python -c "from worker.settings.annotated import *; print(settings_page(), end='')"."""
    assert (ROOT / "docs" / "settings.md").read_text(encoding="utf-8") == settings_page()
