"""Credentials of the store's address are redacted by value, in any spelling."""

from __future__ import annotations

import html
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrack.errors import UsageError
from llmtrack.host import secrets
from llmtrack.host.secrets import HIDDEN, redact, register_address, secrets_of
from llmtrack.tracking.uri import resolve_tracking_uri

PASSWORDS = (
    "it's",
    "12345/abc",
    "99#pass",
    "1234?pw",
    "pa<ss",
    'q"uote',
    "a b c",
    "p@ss@word",
    "ünï-code",
    "s3cr3t",
    "back\\slash",
    "longenough",
)


def spellings(password):
    return {
        password,
        quote(password, safe=""),
        quote(password),
        quote_plus(password),
        repr(password)[1:-1],
        json.dumps(password)[1:-1],
        html.escape(password),
    }


@pytest.mark.parametrize("scheme", ["http", "https", "postgresql", "mysql+pymysql"])
@pytest.mark.parametrize("written", [str, lambda text: quote(text, safe="")], ids=["raw", "quoted"])
@pytest.mark.parametrize("password", PASSWORDS)
def test_a_registered_password_is_redacted_in_any_spelling(scheme, written, password):
    address = f"{scheme}://me:{written(password)}@db.example:5432/mlflow"
    register_address(address)
    assert redact(address) == f"{scheme}://{HIDDEN}@db.example:5432/mlflow"
    for spelling in spellings(password):
        text = f"cannot reach {address} ('{spelling}'), port {spelling}"
        assert spelling not in redact(text), spelling
        assert redact(text).startswith(f"cannot reach {scheme}://{HIDDEN}@db.example:5432/mlflow")
        assert spelling not in redact(spelling, secrets_of({"MLFLOW_TRACKING_URI": address}))


@given(
    st.text(
        alphabet=st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="*"), min_size=8, max_size=20
    )
)
def test_no_registered_password_survives(password):
    secrets._known.clear()
    register_address(f"postgresql://me:{password}@db.example/mlflow")
    for spelling in spellings(password):
        assert password not in redact(f"<{spelling}> {spelling}")


@pytest.mark.parametrize(
    ("address", "redacted"),
    [
        ("https://TOKEN123@host/x", f"https://{HIDDEN}@host/x"),
        ("postgresql:///db?host=h&user=me&password=s3cr3t", f"postgresql:///db?host=h&user=me&password={HIDDEN}"),
        (
            "mssql+pyodbc:///?odbc_connect=DRIVER%3DX%3BPWD%3Dpa%27ss",
            f"mssql+pyodbc:///?odbc_connect=DRIVER%3DX%3BPWD%3D{HIDDEN}",
        ),
        ("postgresql://mlflow:mlflow@db/mlflow", f"postgresql://{HIDDEN}@db/mlflow"),
        ("sqlite:////home/me@corp/a:b.db", "sqlite:////home/me@corp/a:b.db"),
        ("http://[::1]:5000/a@b", "http://[::1]:5000/a@b"),
        ("http://host:5000", "http://host:5000"),
    ],
)
def test_an_address_keeps_its_public_parts(address, redacted):
    register_address(address)
    assert redact(address) == redacted


@pytest.mark.parametrize("written", [str, lambda text: quote(text, safe="")], ids=["raw", "quoted"])
@pytest.mark.parametrize("password", ["it's", "se'cr3t", "pa<ss", "longenough"])
def test_a_password_in_the_query_of_an_address_is_redacted(written, password):
    address = f"postgresql://db.example/mlflow?user=me&password={written(password)}&sslmode=require"
    register_address(address)
    for spelling in spellings(password):
        assert redact(f"refused '{spelling}' (sslmode require)") == f"refused '{HIDDEN}' (sslmode require)"


def test_a_password_that_is_an_ordinary_word_redacts_no_other_words():
    register_address("postgresql://mlflow:mlflow@db/mlflow")
    register_address("postgresql://me:port@db/x")
    assert redact("mlflow ui --port 5000") == "mlflow ui --port 5000"
    assert "port" not in redact("cannot parse me:port@db")


@pytest.mark.parametrize("scheme", ["http", "postgresql"])
@pytest.mark.parametrize("rest", ["ss", "ss@word", "@", "@x", "a-b_c", "ss%40"])
def test_a_password_that_begins_with_a_registered_one_is_redacted_completely(scheme, rest):
    registered, other = f"{scheme}://u:p@host/db", f"{scheme}://u:p@{rest}@other/db"
    hidden = f"{scheme}://{HIDDEN}@other/db, {scheme}://{HIDDEN}@host/db and {HIDDEN}@host"
    text = f"{other}, {registered} and u:p@host"
    assert redact(text, secrets_of({"MLFLOW_TRACKING_URI": registered})) == hidden
    register_address(registered)
    assert redact(text) == hidden


def test_a_short_user_and_password_redact_no_words_that_contain_both():
    assert redact("menu:print the table", secrets_of({"MLFLOW_TRACKING_URI": "http://u:p@host"})) == (
        "menu:print the table"
    )


@pytest.mark.parametrize("password", ["12345/abc", "99#pass", "1234?pw"])
def test_a_password_with_unquoted_separators_is_refused_without_showing_it(password):
    address = f"http://me:{password}@host:5000"
    with pytest.raises(UsageError, match="as %XX") as caught:
        resolve_tracking_uri(address)
    assert password not in str(caught.value)
    assert resolve_tracking_uri(f"http://me:{quote(password, safe='')}@host:5000")


def test_the_spool_stores_no_password(tmp_path):
    from llmtrack.tracking.write.delivery import Delivery
    from llmtrack.tracking.write.spool import Spool

    address = resolve_tracking_uri("postgresql://me:it's@127.0.0.1:1/db")
    delivery = Delivery(address, "x", Spool(tmp_path), print)
    assert delivery.display_uri == delivery._target().tracking_uri == f"postgresql://{HIDDEN}@127.0.0.1:1/db"


def test_the_variable_pwd_is_no_password():
    environ = {"PWD": "/home/me/models", "OLDPWD": "/home/me/other", "DB_PWD": "s3cret-of-mine"}
    assert secrets_of(environ) == ("s3cret-of-mine",)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("https://me:secret@host/x", f"https://{HIDDEN}@host/x"),
        ("see postgresql+psycopg://u:p@ss/w@db:5432/x now", f"see postgresql+psycopg://{HIDDEN}@db:5432/x now"),
        ("git+https://ghtoken@github.com/a/b", f"git+https://{HIDDEN}@github.com/a/b"),
        ("http://h/x?token=abc&page=2", f"http://h/x?token={HIDDEN}&page=2"),
        ("http://h/x?a=1&api_key=abc#top", f"http://h/x?a=1&api_key={HIDDEN}#top"),
        ("s3://b/k?X-Amz-Signature=abc", f"s3://b/k?X-Amz-Signature={HIDDEN}"),
        ("Authorization: Bearer abc.def", f"Authorization: Bearer {HIDDEN}"),
        ("hf_abcdefghijklmnopqrstuvwxyz", f"hf_{HIDDEN}"),
        ("postgresql://u:12345/abc@db/x", f"postgresql://{HIDDEN}@db/x"),
        ("see http://u:12345/abc@db:1/x", f"see http://{HIDDEN}@db:1/x"),
        ("http://u:99#pass@db/x", f"http://{HIDDEN}@db/x"),
        ("http://u:1234?pw@db/x", f"http://{HIDDEN}@db/x"),
        ("mysql://u:99#pass@db/x", f"mysql://{HIDDEN}@db/x"),
        ("http://u:pa<ss@db/x", f"http://{HIDDEN}@db/x"),
        ("http://u:it's@db/x", f"http://{HIDDEN}@db/x"),
        ("'postgresql://u:it's@db/x'", f"'postgresql://{HIDDEN}@db/x'"),
        ("host=db user=me password=pw dbname=x", f"host=db user=me password={HIDDEN} dbname=x"),
        (r"password='it\'s so' host=db", f"password={HIDDEN} host=db"),
        ("AccountName=a;AccountKey=abc==;x", f"AccountName=a;AccountKey={HIDDEN};x"),
    ],
)
def test_credentials_in_texts_are_redacted(text, clean):
    assert redact(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "http://localhost:5000/#/experiments/1",
        "sqlite:////home/me/mlflow.db",
        "mail me@example.com, see https://example.com/a@1.2",
        "http://host:5000/path/a@b",
        "tokens_per_sec=12; key figures: 3",
        "packaged:smollm2,synthetic:smollm2-135m",
    ],
)
def test_other_texts_are_unchanged(text):
    assert redact(text) == text


user = st.text(alphabet=st.characters(categories=["Ll", "Nd"]), min_size=1, max_size=8)
password = st.text(alphabet="abcXYZ$!*@:/.-_", min_size=3, max_size=16).map(lambda text: "pw" + text + "wp")


@given(user, password)
def test_no_password_of_an_address_survives(user, password):
    text = redact(f"failed for postgresql://{user}:{password}@db.example:5432/mlflow (timeout)")
    assert password not in text
    assert "@db.example:5432/mlflow (timeout)" in text


def test_values_of_variables_named_like_credentials_are_redacted():
    environ = {"MLFLOW_TRACKING_PASSWORD": "hunter2hunter2", "HF_TOKEN": "abcdefgh", "HOME": "/home/someone"}
    secrets = secrets_of(environ)
    assert redact("login hunter2hunter2 with abcdefgh in /home/someone", secrets) == (
        f"login {HIDDEN} with {HIDDEN} in /home/someone"
    )
