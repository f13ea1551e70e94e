"""The variables OTEL_*: what of them is refused, and by which words."""

import logging
import threading
from pathlib import Path

import pytest
from opentelemetry.util.re import parse_env_headers

from proxy.settings.config import Settings
from proxy.settings.parse import ConfigError
from proxy.tracing import environment, tracing
from proxy.tracing.environment import Environment


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        *(
            ("OTEL_EXPORTER_OTLP_ENDPOINT", value, "not a URL such as http://collector:4318")
            for value in ("collector", "collector:4318", "grpc://collector", "http://", "http://[::1")
        ),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "x", "not a URL such as http://collector:4318"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "'grpc' is not supported, only http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "'http/json' is not supported, only http/protobuf"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "'zstd' is not supported, only none, gzip, deflate"),
        *(("OTEL_EXPORTER_OTLP_TIMEOUT", v, f"{v!r} is not a number of seconds above 0") for v in ("0", "1s", "nan")),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such", "'/no/such' is not a file"),
        *(("OTEL_BSP_MAX_QUEUE_SIZE", v, f"{v!r} is not a whole number above 0") for v in ("0", "-1", "1.5", "9" * 10)),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "10", "512 is more than OTEL_BSP_MAX_QUEUE_SIZE, 10"),
    ],
)
def test_a_wrong_value_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str) -> None:
    monkeypatch.setenv(name, value)
    at_fault = "OTEL_BSP_MAX_EXPORT_BATCH_SIZE" if " more than " in why else name
    with pytest.raises(ConfigError) as error:
        tracing.check(Settings(trace_sample=0.5))
    assert str(error.value) == f"{at_fault}: {why}"
    tracing.check(Settings())
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    tracing.check(Settings(trace_sample=0.5))
    assert tracing.Tracing(Settings(trace_sample=0.5)).tracer is None


HEADERS = [
    "secret", "=secret", "Authorization: Bearer secret", 'key="secret"', "key=secret;", "key=sec\\ret", "key=s\xe9cret",
    "k y=secret", "key=secret,secret", "api-key=secret", "Authorization=Bearer secret", "a=1 , b=2", "a=", "a==,", ",",
    "a\t=\tb", "a=b\tc", "a=b\nc",
]  # fmt: skip


@pytest.mark.parametrize("headers", HEADERS)
@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"])
def test_headers_that_the_sdk_would_log_and_leave_out_are_refused_and_not_told(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    name: str,
    headers: str,
) -> None:
    with monkeypatch.context() as heard:
        heard.setattr(logging.getLogger("opentelemetry"), "propagate", True)
        parse_env_headers(headers, liberal=True)
    is_good = not caplog.records
    caplog.clear()
    monkeypatch.setenv(name, headers)
    if is_good:
        tracing.check(Settings(trace_sample=0.5))
    else:
        with pytest.raises(ConfigError, match=rf"^{name}: its entry [12] is not NAME=VALUE") as error:
            tracing.check(Settings(trace_sample=0.5))
        assert "ret" not in str(error.value)
    # The SDK's own words go nowhere either.
    with monkeypatch.context() as unchecked:
        unchecked.setattr(environment, "_check_headers", lambda: None)
        tracing.check(Settings(trace_sample=0.5))
    told = capfd.readouterr()
    assert "secret" not in caplog.text + told.out + told.err


def test_good_values(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Environment.read() == Environment("http://localhost:4318", 2048, 512, 5000)
    file = tmp_path / "ca.pem"
    file.write_text("")
    for name, value in {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "nonsense",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://user:secret@collector/v1/traces?key=secret",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(file),
        "OTEL_EXPORTER_OTLP_TIMEOUT": "0.5",
        "OTEL_BSP_SCHEDULE_DELAY": "1",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }.items():
        monkeypatch.setenv(name, value)
    assert Environment.read() == Environment("https://collector/v1/traces", 2048, 512, 1)


def test_without_the_sdk_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(__import__("sys").modules, "proxy.tracing.export", raising=False)
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(ConfigError, match=r"^trace_sample: opentelemetry.* is not installed; run: pip install 'rabbit"):
        tracing.check(Settings(trace_sample=0.5))


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        (
            "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
            "abc",
            "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT must be a non-negative integer but",
        ),
        ("OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER", "x", "Requested component 'x' not found"),
    ],
)
def test_what_only_the_sdk_refuses_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str) -> None:
    monkeypatch.setenv(name, value)
    for make in (tracing.check, tracing.Tracing):
        with pytest.raises(ConfigError, match=f"^trace_sample: OpenTelemetry's SDK cannot be set up: {why}"):
            make(Settings(trace_sample=0.5))


def test_a_check_leaves_no_thread() -> None:
    before = threading.enumerate()
    tracing.check(Settings(trace_sample=0.5))
    assert threading.enumerate() == before
