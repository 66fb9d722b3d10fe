"""The settings tree as one value, and what the parts of the program ask of it.

Reads nothing by itself: `load.py` finds files, variables and flags and lays them over one another.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field, PrivateAttr, SecretStr
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from worker.settings.sections import (
    CommitSection,
    Join,
    KafkaSection,
    Model,
    Observe,
    RedisSection,
    Release,
    Section,
    Stream,
    Train,
)
from worker.spec import Feature, Hyper, Spec


class Settings(BaseSettings):
    """Every setting in force. Frozen; secrets are masked wherever it is shown."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    model: Model
    train: Train = Field(default_factory=Train)
    stream: Stream = Field(default_factory=Stream)
    join: Join = Field(default_factory=Join)
    commit: CommitSection = Field(default_factory=CommitSection)
    kafka: KafkaSection = Field(default_factory=KafkaSection)
    redis: RedisSection = Field(default_factory=RedisSection)
    observe: Observe = Field(default_factory=Observe)
    release: Release = Field(default_factory=Release)

    _origins: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003  the names are the library's
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take `layers` (dictionaries, the first wins, key by key) or plain sections; no other source is looked at."""
        assert isinstance(init_settings, InitSettingsSource)
        layers = init_settings.init_kwargs.get("layers")
        if layers is None:
            return (init_settings,)
        return tuple(InitSettingsSource(settings_cls, init_kwargs=layer) for layer in layers)

    def spec(self) -> Spec:
        """Return what the state is guarded by: features, task, and the rule of learning."""
        features = tuple(Feature(f.name, f.kind, f.missing, f.max_abs, f.bits) for f in self.model.features)
        assert self.model.task != "multiclass"
        assert self.train.optimizer == "sgd"  # both refused while loading
        return Spec(
            features,
            task=self.model.task,
            classes=self.model.classes,
            optimizer=self.train.optimizer,
            reduction=self.train.reduction,
            standardize=self.train.standardize,
        )

    def hyper(self) -> Hyper:
        """Return what may change from run to run."""
        t = self.train
        return Hyper(
            t.learning_rate,
            t.intercept_learning_rate,
            t.schedule,
            l2=t.l2,
            clip_norm=t.clip_norm,
            batch_size=t.batch_size,
        )

    def shown(self) -> dict[str, Any]:
        """Return {dotted key: plain JSON value}, secrets masked, in the order of the documentation."""
        return dict(self._shown())

    def _shown(self) -> Iterator[tuple[str, Any]]:
        for section_name in type(self).model_fields:
            section: Section = getattr(self, section_name)
            for key, value in section.model_dump(mode="json").items():
                yield f"{section_name}.{key}", value

    def digest(self) -> str:
        """SHA-256 (hex) over every value that is not a secret: tells whether two runs had the same settings."""
        plain = {key: value for key, value in self._shown() if not self._is_secret(key)}
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def _is_secret(self, dotted: str) -> bool:
        section, _, key = dotted.partition(".")
        return isinstance(getattr(getattr(self, section), key), SecretStr)

    def origins(self) -> dict[str, str]:
        """Return {dotted key: "default" | "file PATH" | "variable NAME" | "flag"} for every key."""
        return {key: self._origins.get(key, "default") for key, _ in self._shown()}

    def located(self, origins: Mapping[str, str]) -> "Settings":
        """Return the same settings that know where they came from, with `stream.group_id` filled in."""
        stream = self.stream
        if not stream.group_id:
            stream = stream.model_copy(update={"group_id": f"gradstream-{self.model.name}"})
        known = self.model_copy(update={"stream": stream})
        known._origins = dict(origins)  # noqa: SLF001  its own class
        return known
