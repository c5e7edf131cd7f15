"""Settings: flags over environment over a TOML file over defaults, parsed once and refused by name.

Documented in deploy/README.md; a test keeps the two in step.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from kokuban_server.core import limits
from kokuban_server.core.names import parse_board
from kokuban_server.core.refusals import InvalidRequest


class SettingsError(Exception):
    """A setting cannot be used; the text names it."""


def _default_store() -> str:
    home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return f"sqlite:{home / 'kokuban'}"


class EtcdSettings(BaseModel):
    """How to reach etcd beyond its address. Files are PEM."""

    model_config = ConfigDict(extra="forbid")

    ca_file: Path | None = Field(
        default=None, description="certificate authority that etcd's certificate is checked against"
    )
    cert_file: Path | None = Field(default=None, description="certificate to show to etcd, for mutual TLS")
    key_file: Path | None = Field(default=None, description="the certificate's key")
    server_name: str | None = Field(
        default=None, description="name to expect in etcd's certificate instead of the address"
    )
    user: str | None = Field(default=None, description="etcd user, where etcd has authentication on")
    password_file: Path | None = Field(default=None, description="file that holds the user's password")


class TlsSettings(BaseModel):
    """TLS for callers. Files are PEM, and are read again when they change."""

    model_config = ConfigDict(extra="forbid")

    cert_file: Path | None = Field(default=None, description="certificate to show to callers; with it TLS is on")
    key_file: Path | None = Field(default=None, description="the certificate's key")
    client_ca_file: Path | None = Field(
        default=None, description="authority of client certificates; with it every caller must show one"
    )


class JwtSettings(BaseModel):
    """An issuer of JSON Web Tokens."""

    model_config = ConfigDict(extra="forbid")

    issuer: str = Field(min_length=1, description="what the claim `iss` must be")
    audience: str = Field(min_length=1, description="what the claim `aud` must hold")
    keys: str = Field(min_length=1, description="a JWKS or PEM file, or the https address of a JWKS")
    leeway_s: int = Field(default=30, ge=0, le=600, description="how far clocks may differ, in seconds")


class TracingSettings(BaseModel):
    """Spans for OpenTelemetry. Without an endpoint nothing is traced."""

    model_config = ConfigDict(extra="forbid")

    endpoint: str = Field(
        default="",
        pattern=r"^(https?://.+)?$",
        description="where spans are sent by OTLP over HTTP, for instance http://127.0.0.1:4318/v1/traces",
    )
    sample_ratio: float = Field(
        default=0.1, ge=0, le=1, description="which share of the calls that come without a trace context is traced"
    )
    always_conflicts: bool = Field(
        default=True, description="record the span of every call that loses, also of those that are not sampled"
    )
    places: Literal["hashed", "plain", "none"] = Field(
        default="hashed", description="how spans name regions and paths: by a keyed digest, as they are, or not at all"
    )


class Settings(BaseSettings):
    """Everything that can be set, with its unit in its name."""

    model_config = SettingsConfigDict(env_prefix="KOKUBAN_", env_nested_delimiter="__", extra="forbid")

    store: str = Field(
        default_factory=_default_store,
        description="where the board lives: sqlite:FOLDER, etcd://HOST:PORT[,HOST:PORT...][/PREFIX], or memory:",
    )
    listen: str = Field(default="127.0.0.1:7420", description="host:port to listen on; port 0 takes any that is free")
    identity: Literal["development", "credentials"] = Field(
        default="development",
        description="who calls: development believes a header, on loopback only; credentials wants tokens or certificates",
    )
    quickstart: bool = Field(
        default=False,
        description="for containers and first steps: whoever shows one token calls, under the name it gives itself; beyond"
        " loopback too",
    )
    quick_token: SecretStr | None = Field(
        default=None, description="that token; without it one is made and printed at each start"
    )
    principals_file: Path | None = Field(
        default=None, description="who has which token or certificate; `kokuban token` writes it"
    )
    jwt: list[JwtSettings] = Field(
        default=[], description="issuers of JSON Web Tokens; in the file [[jwt]] with issuer, audience, keys, leeway_s"
    )
    tls: TlsSettings = Field(default_factory=TlsSettings, description="TLS for callers; variables KOKUBAN_TLS__NAME")
    plaintext: bool = Field(
        default=False, description="listen beyond loopback without TLS, where something else encrypts"
    )
    boards: Annotated[list[str], NoDecode] = Field(
        default=["main"], description="boards that the development identity makes on first use"
    )
    reflection: bool = Field(default=False, description="answer gRPC server reflection")
    drain_grace_s: float = Field(
        default=10.0, ge=0, le=600, description="how long calls under way may take after SIGTERM, in seconds"
    )
    request_id_window_s: int = Field(
        default=limits.REQUEST_ID_WINDOW_MS // 1000,
        ge=60,
        le=7 * 24 * 3600,
        description="for how long a repeated request id is answered with its first answer, in seconds",
    )
    store_history_s: int = Field(
        default=limits.STORE_HISTORY_MS // 1000,
        ge=1,
        le=7 * 24 * 3600,
        description="how far back a watch can resume and a snapshot can be read, in seconds",
    )
    bookmark_interval_s: float = Field(
        default=10.0, ge=0.05, le=600, description="how often an idle watch is told its position, in seconds"
    )
    upkeep_interval_s: float = Field(
        default=1.0, ge=0.05, le=600, description="how often expired entries and old records are looked for, in seconds"
    )
    audit_anchor_interval_s: float = Field(
        default=60.0,
        ge=0.05,
        le=3600,
        description="how often the ends of the audit chains that moved are anchored, in seconds",
    )
    conflicts_max: int = Field(
        default=limits.CONFLICTS_ENTRIES_MAX,
        ge=1,
        le=limits.CONFLICTS_ENTRIES_MAX,
        description="conflicts kept of each board; the oldest go first",
    )
    screening_phrases_file: Path | None = Field(
        default=None,
        description="phrases to look for in what comes from outside, besides the rules: a line each, grave or suspicious first",
    )
    encryption_keys_file: Path | None = Field(
        default=None,
        description="keys that texts are encrypted with where a policy says so: the first encrypts, all open; `kokuban keys`"
        " writes it, and it is read again when it changes",
    )
    cache_bytes_max: int = Field(
        default=64 * 1024 * 1024, ge=0, description="memory for entries' present states, in bytes"
    )
    unary_calls_max: int = Field(default=4096, ge=1, description="unary calls in hand at once; more are refused")
    streams_max: int = Field(default=10_000, ge=1, description="streams open at once; more are refused")
    principal_calls_max: int = Field(
        default=1024,
        ge=1,
        description="unary calls, and commits of streams, that one agent may have in hand at a server",
    )
    principal_streams_max: int = Field(
        default=1024,
        ge=1,
        description="streams that one agent may have open at a server; as many more that keep sessions alive",
    )
    principal_writes_per_s_max: int = Field(
        default=0, ge=0, description="writes a second of one agent at a server; 0 for no limit"
    )
    principal_writes_burst_max: int = Field(
        default=0, ge=0, description="writes that an agent may make at once after a pause; 0 for those of one second"
    )
    board_bytes_max: int = Field(
        default=0,
        ge=0,
        description="what a board's entries and their history may take of the store, about; 0 for no limit",
    )
    board_census_interval_s: float = Field(
        default=300.0,
        ge=0.05,
        le=86_400,
        description="how often what boards take is counted, in seconds, if it is limited",
    )
    log_format: Literal["auto", "json", "text"] = Field(
        default="auto", description="how log lines look; auto is text on a terminal and JSON elsewhere"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="the least that is logged"
    )
    metrics_listen: str = Field(
        default="",
        pattern=r"^(.+:\d{1,5})?$",
        description="host:port at which Prometheus asks for metrics, in the clear and without a credential",
    )
    metrics_endpoint: str = Field(
        default="",
        pattern=r"^(https?://.+)?$",
        description="where the same metrics are sent by OTLP over HTTP, for instance http://127.0.0.1:4318/v1/metrics",
    )
    tracing: TracingSettings = Field(
        default_factory=TracingSettings, description="spans for OpenTelemetry; variables KOKUBAN_TRACING__NAME"
    )
    etcd: EtcdSettings = Field(
        default_factory=EtcdSettings, description="how to reach etcd; variables KOKUBAN_ETCD__NAME"
    )

    @field_validator("listen")
    @classmethod
    def _listen(cls, listen: str) -> str:
        _, colon, port = listen.rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65535:  # noqa: PLR2004 - the highest port
            raise ValueError("is not host:port")
        return listen

    @model_validator(mode="after")
    def _safe(self) -> Self:
        """Refuse what would let anybody in, or secrets out."""
        host = self.listen.rpartition(":")[0]
        is_local = host in {"127.0.0.1", "localhost", "[::1]"}
        tls = self.tls
        if (tls.cert_file is None) != (tls.key_file is None):
            raise ValueError("tls: cert_file and key_file go together")
        if tls.client_ca_file is not None and tls.cert_file is None:
            raise ValueError("tls: client_ca_file needs cert_file and key_file")
        if self.quick_token is not None and not self.quickstart:
            raise ValueError("quick_token: belongs to quickstart")
        if self.quickstart and self.identity != "development":
            raise ValueError("quickstart: is one token for all; leave identity as it is")
        if self.identity == "development":
            if not is_local and not self.quickstart:
                raise ValueError(
                    "listen: the development identity listens on loopback only: 127.0.0.1, localhost or [::1]"
                )
            if self.principals_file is not None or self.jwt or tls.client_ca_file is not None:
                raise ValueError("identity: development believes a header; say credentials for tokens and certificates")
        elif self.principals_file is None and not self.jwt:
            raise ValueError("identity: credentials needs principals_file or jwt")
        elif not is_local and tls.cert_file is None and not self.plaintext:
            raise ValueError(
                "listen: beyond loopback tokens travel over TLS: tls.cert_file, or plaintext if it is safe"
            )
        return self

    @field_validator("store")
    @classmethod
    def _store(cls, store: str) -> str:
        if store == "memory:" or (store.startswith(("sqlite:", "etcd://")) and not store.endswith((":", "://"))):
            return store
        raise ValueError("is not sqlite:FOLDER, etcd://HOST:PORT or memory:")

    @field_validator("boards", mode="before")
    @classmethod
    def _separated(cls, names: object) -> object:
        return [name.strip() for name in names.split(",")] if isinstance(names, str) else names

    @field_validator("boards")
    @classmethod
    def _board_ids(cls, boards: list[str]) -> list[str]:
        for name in boards:
            try:
                parse_board(name)
            except InvalidRequest as refusal:
                raise ValueError(f"{name!r}: {refusal.detail}") from refusal
        return boards

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - not used, on purpose: no hidden files
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags first, then the environment, then the file that `load` names."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def load(flags: dict[str, Any], config_file: Path | None) -> Settings:
    """Give the settings of these flags (those that are `None` were not given), the environment, and the file.

    Raises `SettingsError` that names each setting that cannot be used.
    """
    if config_file is not None and not config_file.is_file():
        raise SettingsError(f"there is no configuration file {config_file}")

    class FromFile(Settings):
        model_config = SettingsConfigDict(toml_file=config_file)

    try:
        return FromFile(**{name: value for name, value in flags.items() if value is not None})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{config_file} is not TOML: {error}") from error
    except OSError as error:
        raise SettingsError(f"{config_file} cannot be read: {error}") from error
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        raise SettingsError("; ".join(faults)) from error
