"""Settings: where values come from, which wins, what is refused and in which words."""

import json
from pathlib import Path

import pytest

from worker.errors import ConfigError
from worker.settings import Settings, load_settings
from worker.spec import Feature, Hyper

FEATURES = '[{"name": "x1"}, {"name": "carrier", "kind": "categorical", "bits": 6}]'
MODEL = '[model]\nname = "flights"\n[[model.features]]\nname = "x1"\n'


def load(
    text: str | None = None,
    *,
    tmp: Path | None = None,
    env: dict[str, str] | None = None,
    flags: dict[str, str] | None = None,
) -> Settings:
    """Load from a file (where `text` is given), variables and flags; features by flag where there is no file."""
    path = None
    given = dict(flags or {})
    if text is not None:
        assert tmp is not None
        path = tmp / "s.toml"
        path.write_text(text, encoding="utf-8")
    elif "model.features" not in given and "GRADSTREAM_MODEL__FEATURES" not in (env or {}):
        given["model.features"] = FEATURES
    return load_settings(path, given, environ=env or {})


def refused(key: str, value: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(flags={key: value})
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 2
    return message


def test_file_then_variables_then_flags(tmp_path: Path) -> None:
    text = MODEL + "[train]\nlearning_rate = 0.1\nbatch_size = 8\nl2 = 0.5\n"
    env = {"GRADSTREAM_TRAIN__LEARNING_RATE": "0.2", "GRADSTREAM_TRAIN__BATCH_SIZE": "16"}
    s = load(text, tmp=tmp_path, env=env, flags={"train.learning_rate": "0.3"})
    assert (s.train.learning_rate, s.train.batch_size, s.train.l2) == (0.3, 16, 0.5)
    origins = s.origins()
    assert origins["train.learning_rate"] == "flag"
    assert origins["train.batch_size"] == "variable GRADSTREAM_TRAIN__BATCH_SIZE"
    assert origins["train.l2"] == f"file {tmp_path / 's.toml'}"
    assert origins["train.seed"] == "default"


def test_the_file_is_found_by_flag_then_variable_then_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gradstream.toml").write_text(MODEL)
    (tmp_path / "b.toml").write_text(MODEL.replace("flights", "by-variable"))
    (tmp_path / "c.toml").write_text(MODEL.replace("flights", "by-flag"))
    env = {"GRADSTREAM_CONFIG": "b.toml"}
    assert load_settings(None, {}, environ={}).model.name == "flights"
    assert load_settings(None, {}, environ=env).model.name == "by-variable"
    assert load_settings(Path("c.toml"), {}, environ=env).model.name == "by-flag"


def test_lists_come_as_json_in_variables_and_flags() -> None:
    by_variable = load(env={"GRADSTREAM_MODEL__FEATURES": FEATURES})
    assert by_variable.spec() == load(flags={"model.features": FEATURES}).spec()
    assert by_variable.spec().features == (Feature("x1"), Feature("carrier", "categorical", bits=6))


def test_spec_and_hyper_carry_what_was_set() -> None:
    s = load(
        flags={
            "model.task": "regression",
            "train.reduction": "mean",
            "train.standardize": "false",
            "train.learning_rate": "0.2",
            "train.intercept_learning_rate": "0.3",
            "train.schedule": "inverse_sqrt",
            "train.l2": "0.1",
            "train.clip_norm": "5",
            "train.batch_size": "7",
        }
    )
    spec = s.spec()
    assert (spec.task, spec.reduction, spec.standardize, spec.optimizer) == ("regression", "mean", False, "sgd")
    assert s.hyper() == Hyper(0.2, 0.3, "inverse_sqrt", l2=0.1, clip_norm=5.0, batch_size=7)
    assert load().hyper() == Hyper()


def test_group_follows_the_model_unless_it_is_named() -> None:
    assert load(flags={"model.name": "flights"}).stream.group_id == "gradstream-flights"
    assert load(flags={"stream.group_id": "mine"}).stream.group_id == "mine"


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load().train.learning_rate = 0.5
    with pytest.raises(ValueError, match="frozen"):
        load().train = load().train


def test_the_digest_sees_values_and_no_secrets() -> None:
    base = load().digest()
    assert load().digest() == base
    assert load(flags={"train.l2": "0.1"}).digest() != base
    assert load(flags={"redis.password": "a"}).digest() == load(flags={"redis.password": "b"}).digest()
    assert load(flags={"join.window_s": "86400"}).digest() == base
    one, other = (load(flags={"redis.url": f"redis://u:{p}@h:1/0"}).digest() for p in ("a", "b"))
    assert one == other


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:hunter2@host:1/0",
        "rediss://:hunter2@host/0",
        "redis://h/0?password=hunter2",
        "redis://u:h@hunter2@h/0",
    ],
)
def test_secrets_are_masked_wherever_settings_are_shown(url: str) -> None:
    s = load(
        flags={
            "redis.url": url,
            "redis.password": "hunter2",
            "kafka.security_protocol": "SASL_SSL",
            "kafka.sasl_mechanism": "PLAIN",
            "kafka.sasl_username": "me",
            "kafka.sasl_password": "hunter2",
            "kafka.ssl_password": "hunter2",
        }
    )
    for shown in (repr(s), str(s), json.dumps(s.shown()), repr(s.redis), s.model_dump_json()):
        assert "hunter2" not in shown
    assert s.redis.url.get_secret_value() == url
    assert s.kafka.sasl_password.get_secret_value() == "hunter2"


@pytest.mark.parametrize("key", ["redis.url", "kafka.sasl_password", "kafka.ssl_password"])
def test_no_error_shows_a_secret(key: str) -> None:
    """Each of these is refused: no address of Redis, no password without SASL or a key file."""
    assert "hunter2" not in refused(key, "https://hunter2")


@pytest.mark.parametrize(
    "url",
    ["unix:///run/redis.sock?db=1", "rediss://h:1/0", "redis+sentinel://a:1,b:2/main/0", "rediss+cluster://a:1,b:2"],
)
def test_every_kind_of_redis_has_an_address(url: str) -> None:
    assert load(flags={"redis.url": url}).redis.url.get_secret_value() == url


def test_without_features_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in (None, "", "[model]\nname = 'a'\n"):
        path = None
        if text is not None:
            path = tmp_path / "s.toml"
            path.write_text(text)
        with pytest.raises(ConfigError, match=r"model\.features is not set.*gradstream init"):
            load_settings(path, {}, environ={})


# What is refused: key, value, words that must be in the message.
REFUSED = [
    ("model.name", "Flights", "a-z, 0-9 and '-'"),
    ("model.name", "", "1 to 64"),
    ("model.name", "a" * 65, "1 to 64"),
    ("model.name", "a\n", "1 to 64"),
    ("model.features", "[]", "one table or more"),
    ("model.features", "{}", "one table or more"),
    ("model.features", "x1", "JSON"),
    ("model.features", '[{"name": ""}]', "model.features[0].name"),
    ("model.features", '[{"kind": "numeric"}]', "model.features[0].name is not set"),
    ("model.features", '[{"name": "a"}, {"name": "a"}]', "there twice"),
    ("model.features", '[{"name": "a\\u0000"}]', "can not be printed"),
    ("model.features", '[{"name": "a", "kind": "text"}]', "numeric | categorical"),
    ("model.features", '[{"name": "a", "bits": 4}]', "bits does not apply to a numeric feature"),
    ("model.features", '[{"name": "a", "kind": "categorical", "max_abs": 4}]', "max_abs does not apply"),
    ("model.features", '[{"name": "a", "kind": "categorical", "bits": 25}]', "from 1 to 24"),
    ("model.features", '[{"name": "a", "size": 25}]', "model.features[0].size is not a setting"),
    ("model.features", '["a"]', "model.features[0]: must be a table"),
    ("train.learning_rate", "0", "above 0"),
    ("train.learning_rate", "NaN", "above 0"),
    ("train.learning_rate", "Infinity", "above 0"),
    ("train.learning_rate", "fast", "above 0"),
    ("train.learning_rate", '"0.1"', "above 0"),
    ("train.intercept_learning_rate", "-1", "above 0"),
    ("train.schedule", "cosine", "constant | inverse_sqrt | inverse"),
    ("train.standardize", "yes", "true | false"),
    ("train.standardize", "1", "true | false"),
    ("train.batch_size", "0", "from 1 to 100000"),
    ("train.batch_size", "1.5", "a whole number"),
    ("train.batch_size", "true", "a whole number"),
    ("train.l2", "-0.1", "from 0"),
    ("train.clip_norm", "-1", "from 0"),
    ("train.seed", "-1", "from 0"),
    ("stream.mode", "both", "joined | inline"),
    ("stream.features_topic", "", "1 to 249"),
    ("stream.features_topic", "a b", "1 to 249"),
    ("stream.features_topic", "..", "not a topic name"),
    ("stream.labels_topic", "features", "also stream.features_topic"),
    ("stream.dead_letters_topic", "labels", "also stream.labels_topic"),
    ("stream.dead_letters_topic", "", "1 to 249"),
    ("stream.metrics_topic", "dead-letters", "also stream.dead_letters_topic"),
    ("stream.start", "middle", "earliest | latest"),
    ("stream.unknown_features", "learn", "ignore | refuse"),
    ("stream.max_event_bytes", "0", "from 16"),
    ("stream.max_idle_ms", "-1", "from 0"),
    ("join.window_s", "-1", "from 0"),
    ("join.on_expiry", "positive", "drop | negative"),
    ("join.max_pending", "0", "from 1"),
    ("join.remember", "-1", "from 0"),
    ("join.idle_labels", "skip", "wait | advance"),
    ("join.lateness_s", "-1", "from 0"),
    ("join.disorder_s", "-1", "from 0"),
    ("join.max_future_s", "-1", "from 0"),
    ("commit.every_s", "0", "from 0.01"),
    ("commit.every_examples", "-1", "from 0"),
    ("commit.turn_wait_ms", "0", "from 1"),
    ("kafka.bootstrap_servers", "localhost", "host:port"),
    ("kafka.bootstrap_servers", "a:1, b:2", "no spaces"),
    ("kafka.session_timeout_ms", "10", "from 1000"),
    ("kafka.security_protocol", "TLS", "PLAINTEXT | SSL"),
    ("kafka.security_protocol", "SASL_SSL", "kafka.sasl_mechanism: not set"),
    ("kafka.sasl_username", "me", "has no effect with security_protocol PLAINTEXT"),
    ("kafka.ssl_cafile", "ca.pem", "has no effect with security_protocol PLAINTEXT"),
    ("redis.url", "http://localhost", "redis://"),
    ("observe.http_port", "70000", "to 65535"),
    ("observe.http_host", "", "a host name"),
    ("observe.metrics_every_ms", "-1", "from 0"),
    ("observe.log_level", "loud", "debug | info"),
    ("observe.log_format", "xml", "json | console"),
    # Not in this version:
    ("model.task", "multiclass", "not in this version"),
    ("model.classes", '["a", "b"]', "not in this version"),
    ("train.optimizer", "adam", "not in this version"),
    ("train.optimizer", "ftrl", "not in this version"),
    ("train.l1", "0.1", "l1 needs optimizer ftrl"),
    ("train.ftrl_beta", "2.0", "ftrl_beta needs optimizer ftrl"),
    ("stream.client", "confluent-kafka", "not in this version"),
    ("stream.content_type", "application/msgpack", "not in this version"),
    ("join.on_expiry", "fake_negative_weighted", "not in this version"),
    ("release.store", "s3://bucket/x", "object stores are not in this version"),
    ("release.store", "file://host/x", "object stores are not in this version"),
    ("release.trust", "trust.json", "not in this version"),
    ("release.policy", "policy.toml", "not in this version"),
    # Unknown:
    ("train.learning_rat", "0.1", "did you mean train.learning_rate?"),
    ("trian.learning_rate", "0.1", "did you mean train.learning_rate?"),
    ("learning_rate", "0.1", "is not a setting"),
]


@pytest.mark.parametrize(("key", "value", "words"), REFUSED, ids=[f"{k}={v[:30]}" for k, v, _ in REFUSED])
def test_refused_values_name_key_and_what_is_allowed(key: str, value: str, words: str) -> None:
    message = refused(key, value)
    assert words in message
    assert key.rpartition(".")[2] in message or words.startswith("kafka.")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MODEL + "[train]\nbatch_size = 0\n", "train.batch_size = 0: must be a whole number from 1"),
        (MODEL + "[train]\nbatch_size = 0\n", "s.toml:6)"),
        (MODEL + '[train]\nbatch_size = "64"\n', "train.batch_size"),
        (
            MODEL + '[train]\nkernel = "numba"\nreduction = "mean"\n',
            'train.kernel: "numba" computes reduction sequential only',
        ),
        (MODEL + "[train]\nlearning_rat = 1\n", "did you mean train.learning_rate? (set in"),
        (MODEL + "[trian]\nseed = 1\n", "[trian] is not a section of the settings: did you mean train?"),
        ("train = 3\n" + MODEL, "train: must be a section"),
        ("seed = 3\n" + MODEL, "seed stands in no section: did you mean train.seed?"),
        (MODEL + "[[model.features]]\nname = 'b'\nkind = 'categorical'\nbits = 0\n", "s.toml:8)"),
        (MODEL + "[train\n", "is not TOML"),
        (MODEL + "[train]\nseed = 1\nseed = 2\n", "is not TOML"),
    ],
)
def test_faults_of_the_file_say_where(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text, tmp=tmp_path)
    assert words in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    assert load("\ufeff" + MODEL, tmp=tmp_path).model.name == "flights"


@pytest.mark.parametrize("kind", ["absent", "folder", "latin"])
def test_a_file_that_can_not_be_read_is_named(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    if kind == "folder":
        path.mkdir()
    elif kind == "latin":
        path.write_bytes(b'[model]\nname = "\xe9"\n')
    with pytest.raises(ConfigError, match=r"s\.toml"):
        load_settings(path, {}, environ={})


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("GRADSTREAM_TRAIN__LEARNING_RAT", "GRADSTREAM_TRAIN__LEARNING_RATE"),
        ("GRADSTREAM_TRAIN_BATCH_SIZE", "GRADSTREAM_TRAIN__BATCH_SIZE"),
        ("GRADSTREAM_TRIAN__BATCH_SIZE", "GRADSTREAM_TRAIN__BATCH_SIZE"),
        ("GRADSTREAM_KAFKA__BOOTSTRAP", "GRADSTREAM_KAFKA__BOOTSTRAP_SERVERS"),
        ("GRADSTREAM_OBSERV__HTTP_PORT", "GRADSTREAM_OBSERVE__HTTP_PORT"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_known_one(name: str, near: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(env={name: "1"})
    assert f"variable {name} is not a setting" in str(caught.value)
    assert near in str(caught.value)


def test_variables_that_are_not_settings_are_passed_over() -> None:
    """Kubernetes adds variables for every service of the namespace: one called gradstream must not stop the pods."""
    env = {
        "GRADSTREAM_REQUIRE": "all",
        "GRADSTREAM_PASSPHRASE_FILE": "/x",
        "GRADSTREAM_SERVICE_HOST": "10.0.0.1",
        "GRADSTREAM_SERVICE_PORT": "9108",
        "GRADSTREAM_SERVICE_PORT_HTTP": "9108",
        "GRADSTREAM_PORT": "tcp://10.0.0.1:9108",
        "GRADSTREAM_PORT_9108_TCP": "tcp://10.0.0.1:9108",
        "GRADSTREAM_PORT_9108_TCP_ADDR": "10.0.0.1",
        "GRADSTREAM_CONSOLE_SERVICE_HOST": "10.0.0.1",
        "OTHER_TRAIN__BATCH_SIZE": "1",
    }
    assert load(env=env).origins() == load().origins()


def test_a_setting_whose_variable_looks_like_a_service_link_is_a_setting() -> None:
    assert load(env={"GRADSTREAM_OBSERVE__HTTP_PORT": "0"}).observe.http_port == 0


def test_every_variable_sets_its_key() -> None:
    """Each key by its variable, with its own default written as a variable is."""
    from worker.settings.annotated import offered

    env = {"GRADSTREAM_MODEL__FEATURES": FEATURES}
    for key in offered():
        if key.name != "features" and key.info.default is not None and not key.secret:
            default = key.info.default
            env[key.variable] = default if key.text else json.dumps(default)
    origins = load(env=env).origins()
    by_variable = {origin.removeprefix("variable ") for origin in origins.values() if origin != "default"}
    assert by_variable == set(env)
    assert len(env) > 40


def test_inline_mode_asks_for_its_own_topics_only() -> None:
    s = load(flags={"stream.mode": "inline", "stream.labels_topic": "features"})
    assert s.stream.examples_topic == "examples"
    message = refused("stream.mode", "joint")
    assert "joined | inline" in message
    with pytest.raises(ConfigError, match=r"also stream\.examples_topic"):
        load(flags={"stream.mode": "inline", "stream.dead_letters_topic": "examples"})


def test_tls_and_sasl_are_accepted_where_they_are_whole() -> None:
    s = load(
        flags={
            "kafka.security_protocol": "SASL_SSL",
            "kafka.sasl_mechanism": "SCRAM-SHA-512",
            "kafka.sasl_username": "me",
            "kafka.sasl_password": "secret",
            "kafka.ssl_cafile": "ca.pem",
        }
    )
    assert s.kafka.ssl_cafile == "ca.pem"
    with pytest.raises(ConfigError, match=r"kafka\.ssl_certfile: not set"):
        load(flags={"kafka.security_protocol": "SSL", "kafka.ssl_keyfile": "k.pem"})


def test_every_number_has_bounds() -> None:
    """A number without bounds is a typing error away from a run that seems to work."""
    from annotated_types import Ge, Gt, Le

    from worker.settings import fields

    infos = [(k.dotted, k.info) for k in fields.every() if k.section != "release"]
    infos += list(fields.feature_keys().items())
    checked = 0
    for name, info in infos:
        if not fields.allowed(info).startswith(("a number", "a whole number")):
            continue
        assert any(isinstance(m, Ge | Gt) for m in info.metadata), name
        assert any(isinstance(m, Le) for m in info.metadata), name
        checked += 1
    assert checked > 20


def test_every_key_has_a_meaning() -> None:
    from worker.settings import fields

    assert [k.dotted for k in fields.every() if not k.info.description] == []
