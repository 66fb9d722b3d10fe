"""The annotated settings file and the page about settings, written from the tree itself so that they can not drift.

Pure: returns text. What this version does not have yet is left out.
"""

import json
from collections.abc import Iterator

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from worker.settings import fields
from worker.settings.rules import BUILT

# Keys of parts that are not built: setting them is refused, so offering them would be a trap.
ABSENT = (
    "model.classes", "train.l1", "train.ftrl_beta", "release.export_every_examples", "release.producer_key",
    "release.policy", "release.trust",
)  # fmt: skip

_HEAD = """\
# Settings of Gradstream. Every key is here with its default; a value can be overridden by a variable
# (GRADSTREAM_TRAIN__LEARNING_RATE=0.05) and both by a flag (--set train.learning_rate=0.05).
# "gradstream config" shows what is in force and where it came from. Below each meaning: what is allowed.

"""

_FEATURES = """\
# The inputs of the model: an example, replace it with your own. A feature is numeric or categorical.
[[model.features]]
name = "distance"
kind = "numeric"
{numeric}
[[model.features]]
name = "carrier"
kind = "categorical"
{categorical}"""


def offered() -> Iterator[fields.Key]:
    """Yield the settings that this version has, in the order of the tree."""
    for key in fields.every():
        if not key.dotted.startswith(ABSENT):
            yield key


def settings_toml() -> str:
    """Return an annotated `gradstream.toml`: defaults, and an example model of two features."""
    parts = [_HEAD]
    kinds = fields.section_types()
    for section, kind in kinds.items():
        keys = [k for k in offered() if k.section == section]
        if not keys:
            continue
        parts.append(f"[{section}]  # {kind.__doc__}\n")
        parts.extend(_toml_line(k.name, k.info, _words(k)) for k in keys if k.dotted != "model.features")
        if section == "model":
            parts.append("\n" + _FEATURES.format(numeric=_feature("numeric"), categorical=_feature("categorical")))
        parts.append("\n")
    return "".join(parts).rstrip("\n") + "\n"


def _feature(kind: str) -> str:
    lines = (
        _toml_line(name, info, fields.allowed(info))
        for name, info in fields.feature_keys().items()
        if (info.description or "").startswith(kind)
    )
    return "".join(lines)


def _toml_line(name: str, info: FieldInfo, words: str) -> str:
    """Write the meaning above `key = default`; commented out where there is no default, or it is a secret."""
    comment = f"\n# {info.description}\n#   {words}\n"
    if info.default is None or isinstance(info.default, SecretStr):
        return f"{comment}# {name} = {_example(info)}\n"
    return f"{comment}{name} = {toml_value(info.default)}\n"


def _example(info: FieldInfo) -> str:
    return "0.01" if "number" in fields.allowed(info) else '""'


def toml_value(value: object) -> str:
    """Write one default as TOML."""
    if hasattr(value, "get_secret_value"):
        value = value.get_secret_value()
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    return fields.number(value)


def _words(key: fields.Key) -> str:
    """Say what may be set in this version."""
    built = BUILT.get(key.dotted)
    return " | ".join(built) if built else fields.allowed(key.info)


def settings_page() -> str:
    """Return the Markdown page about settings."""
    parts = [_PAGE_HEAD]
    for section, kind in fields.section_types().items():
        keys = [k for k in offered() if k.section == section]
        if not keys:
            continue
        parts.append(
            f"\n## [{section}]\n\n{kind.__doc__}\n\n| key | default | allowed | meaning |\n|---|---|---|---|\n"
        )
        parts.extend(_row(k.name, k.info, _words(k)) for k in keys)
        if section == "model":
            parts.append(_FEATURE_HEAD)
            parts.extend(_row(name, info, fields.allowed(info)) for name, info in fields.feature_keys().items())
    return "".join(parts) + _PAGE_TAIL


def _row(name: str, info: FieldInfo, words: str) -> str:
    if info.is_required():
        default = "required"
    elif info.default is None or isinstance(info.default, SecretStr):
        default = "not set"
    else:
        default = f"`{toml_value(info.default)}`"
    cells = (f"`{name}`", default, words, info.description or "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


_PAGE_HEAD = """\
# Settings

Written from the settings tree (a test compares them): `gradstream init` writes the same as an annotated file.

Values come from three places; a later one beats an earlier one, key by key:

1. the file: `--config FILE`, or `GRADSTREAM_CONFIG`, or `gradstream.toml` in the working directory
2. variables: `GRADSTREAM_<SECTION>__<KEY>`, such as `GRADSTREAM_TRAIN__LEARNING_RATE=0.05`; numbers, `true` and
   `false` as they are, lists as JSON: `GRADSTREAM_MODEL__FEATURES='[{"name": "distance"}]'`
3. flags: `--set train.learning_rate=0.05`, as often as needed, written as variables are

`gradstream config` shows every value in force and where it came from. Passwords are never shown.

An unknown key is an error, in the file and as a variable. `GRADSTREAM_CONFIG`, `GRADSTREAM_PASSPHRASE_FILE` and
`GRADSTREAM_REQUIRE` are not settings; variables that Kubernetes makes for a service called `gradstream…`
(`…_SERVICE_HOST`, `…_PORT`) are passed over. What is wrong with settings ends a command with exit code 2 and one line:

```
gradstream: error: train.learning_rate = -1: must be a number above 0 and up to 1e6 (set in gradstream.toml:24)
```
"""

_FEATURE_HEAD = """
### [[model.features]]

One table a feature. Features, task, reduction and standardize make the *spec*: a state that was learned under another
spec is refused, since its numbers would mean something else.

| key | default | allowed | meaning |
|---|---|---|---|
"""

_PAGE_TAIL = """
## Not in this version

Refused with exit code 2, never ignored: `model.task = "multiclass"` and `model.classes`, any `train.optimizer` but
`sgd` (so `train.l1` and `train.ftrl_beta` too), `stream.client = "confluent-kafka"`, any `stream.content_type` but
`application/json`, `join.on_expiry = "fake_negative_weighted"`, object stores as `release.store`, and every other key
of `[release]`.
"""
