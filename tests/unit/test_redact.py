from time import process_time

import pytest

from dagmaster.model.redact import redact, redact_text


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "db_password",
        "dbPass",
        "PGPASSWORD",
        "passphrase",
        "secret",
        "client_secret",
        "clientSecret",
        "apiKey",
        "api_key",
        "X-Api-Key",
        "access_key",
        "account_key",
        "private_key",
        "token",
        "access_token",
        "authToken",
        "access_tokens",
        "credentials",
        "authorization",
        "cookie",
        "connection_string",
        "sas",
        "sas_url",
        "pwd",
        "password_hash",
    ],
)
def test_values_of_secret_keys_are_redacted(name: str) -> None:
    assert redact({"a": [{name: "hunter2"}]}) == {"a": [{name: "***"}]}
    assert redact({name: {"deep": "hunter2"}}) == {name: "***"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("token_count", 5),
        ("max_tokens", 4096),
        ("token", 12),
        ("tokens", ["the", "cat"]),
        ("passengers", ["Ada"]),
        ("compass", "north"),
        ("bypass", True),
        ("has_password", True),
        ("secret_name", "vault/x"),
        ("private_key_path", "/keys/a.pem"),
        ("secretary", "Ada"),
        ("password", ""),
        ("password", None),
        ("keyboard", "qwerty"),
        ("author", "Ada"),
    ],
)
def test_other_values_are_shown(name: str, value: object) -> None:
    assert redact({name: value}) == {name: value}


def test_a_number_can_be_a_password() -> None:
    assert redact({"password": 1234}) == {"password": "***"}


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("postgresql://ada:p@ss@db/x", "postgresql://ada:***@db/x"),
        ("redis://:pw@cache:6379", "redis://:***@cache:6379"),
        ("https://a.blob/x?sv=1&sig=abc%3D&se=2", "https://a.blob/x?sv=1&sig=***&se=2"),
        ("AccountName=a;AccountKey=abc==;Endpoint=x", "AccountName=a;AccountKey=***;Endpoint=x"),
        ("refresh_token=abc", "refresh_token=***"),
        ("PGPASSWORD=abc psql", "PGPASSWORD=*** psql"),
        ("Authorization: Bearer abc.def123", "Authorization: Bearer ***"),
        ("Basic dXNlcjpwYXNz", "Basic ***"),
        ("""{'password': 'hun\\'ter', 'a': 'b'}""", """{'password': '***', 'a': 'b'}"""),
        ('{"client_secret":"x","n":1}', '{"client_secret":"***","n":1}'),
        ("key dm_abcdefghijkl_" + "A" * 43, "key dm_***"),
        ("token dmt_" + "A" * 43, "token dmt_***"),
    ],
)
def test_secrets_in_strings_are_redacted(text: str, redacted: str) -> None:
    assert redact_text(text) == redacted
    assert redact_text(redacted) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "basic information about bearers",
        "Bearer certificates are missing",
        "http://host:80/x?mail=a@b",
        "the design=good",
        "a: b@c",
        "{'token_count': '5'}",
    ],
)
def test_other_strings_are_unchanged(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize("part", ["a.b-", "://", "x://u:", '"a_', "token=", "Basic ", "a_", "'password': '"])
def test_the_running_time_is_linear(part: str) -> None:
    began = process_time()
    redact_text(part * 100_000)
    assert process_time() - began < 5
