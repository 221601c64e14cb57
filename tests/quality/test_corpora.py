"""Corpora: accepted files, errors for others, and digests of the texts alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrack.errors import UsageError
from llmtrack.quality import corpora
from llmtrack.quality.corpora import Corpus, load_corpus

# Documents as they come out of any file: no blank lines before, no white space after, no carriage return.
DOCUMENTS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), min_size=1)
    .map(lambda text: text.strip())
    .filter(bool),
    min_size=1,
    max_size=6,
)


def write(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def jsonl(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def refusal(spec: str) -> str:
    """Return the one-line message with which a spec is refused."""
    with pytest.raises(UsageError) as caught:
        load_corpus(spec)
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- the packaged corpus


def test_builtin_has_not_changed() -> None:
    # Every perplexity tracked on `builtin` is comparable only with others of the same digest. If this turns
    # red by accident, undo the edit; if the corpus is changed on purpose, all earlier results become
    # incomparable: say so in the changelog, and only then update the digest.
    assert load_corpus("builtin").digest == "8a24b0f3fab43e96"


def test_builtin_has_the_promised_size_and_variety() -> None:
    corpus = load_corpus("builtin")
    words = [len(text.split()) for text in corpus.texts]
    assert corpus.name == "builtin"
    # SmolLM2's tokenizer, which is not at hand offline, makes 5,272 tokens of these words.
    assert sum(words) == 3625
    assert corpus.bytes == 19969
    assert 24 <= len(corpus.texts) <= 32
    assert min(words) < 25
    assert sum(count >= 350 for count in words) == 2
    assert len(set(corpus.texts)) == len(corpus.texts)


def test_builtin_lines_have_unique_ids_and_registers() -> None:
    data = resources.files("llmtrack.quality").joinpath("data", "builtin.jsonl").read_bytes()
    records = [json.loads(line) for line in data.decode().split("\n") if line]
    assert b"\r" not in data
    assert all(list(record) == ["id", "register", "text"] for record in records)
    assert len({record["id"] for record in records}) == len(records)
    assert len({record["register"] for record in records}) >= 20
    # The packaged file is already in canonical form, so reading it by hand gives the same texts.
    assert load_corpus("builtin").texts == tuple(record["text"] for record in records)


def test_builtin_is_equal_as_plain_text(tmp_path: Path) -> None:
    builtin = load_corpus("builtin")
    copy = load_corpus(write(tmp_path, "copy.txt", "\n\f\n".join(builtin.texts)))
    assert copy.texts == builtin.texts
    assert copy.digest == builtin.digest
    assert copy.name == "copy.txt"


@pytest.mark.slow(1)
def test_the_module_imports_neither_torch_nor_mlflow() -> None:
    code = (
        "import sys, llmtrack.quality.corpora as c; c.load_corpus('builtin'); "
        "sys.exit(bool({'torch', 'mlflow', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- .txt


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ("One.\n\nStill one.\n", ["One.\n\nStill one."]),
        ("One.\n\n\nTwo.\n \n\t\n\nThree.", ["One.", "Two.", "Three."]),
        ("One.\n\f\nTwo.\n\n \f \n\nThree.\n", ["One.", "Two.", "Three."]),
        ("def a(): ...\n\n\ndef b(): ...\n\f\nTwo.", ["def a(): ...\n\n\ndef b(): ...", "Two."]),
        ("A page\fbreak inside a line\n\fis text.", ["A page\fbreak inside a line\n\fis text."]),
        ("\f\n\f\n   \n\f\nOnly.\n\f\n", ["Only."]),
        ("\n\n\n    indented = 1\n    kept = 2\n", ["    indented = 1\n    kept = 2"]),
    ],
    ids=[
        "paragraphs",
        "blank runs",
        "form feeds",
        "form feeds win",
        "inline feeds",
        "blank dropped",
        "indent",
    ],
)
def test_txt_is_split_into_documents(tmp_path: Path, content: str, texts: list[str]) -> None:
    assert list(load_corpus(write(tmp_path, "a.txt", content)).texts) == texts


# --- .jsonl


def test_jsonl_takes_objects_and_bare_strings_and_skips_blanks(tmp_path: Path) -> None:
    content = '{"id": 7, "text": "One."}\n\n  \n"Two."\n{"text": "  \\n "}\n""\n{"text": "Three.\\n", "x": null}'
    assert load_corpus(write(tmp_path, "a.jsonl", content)).texts == ("One.", "Two.", "Three.")


def test_jsonl_lines_end_at_line_feeds_only(tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\x85d"
    content = json.dumps({"text": text}, ensure_ascii=False) + "\n"
    assert load_corpus(write(tmp_path, "a.jsonl", content)).texts == (text,)


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ('{"text": "open', ["line 3", "not valid JSON", "Unterminated string"]),
        ("plain prose", ["line 3", "not valid JSON", '{"text": "One document."}']),
        pytest.param("[" * 200_000, ["line 3", "not valid JSON", "nested too deeply"], id="deep"),
        pytest.param("9" * 5_000, ["line 3"], id="long"),
        ('{"content": "x", "id": 1}', ["line 3", "no field `text`", "'content', 'id'"]),
        (json.dumps(dict.fromkeys(["new\nline", *"abcdefghij"])), ["line 3", "'new\\nline'", "'g', ..."]),
        ("{}", ["line 3", "no field `text`", "the object is empty"]),
        ('{"text": 5}', ["line 3, field `text` is a number"]),
        ('{"text": null}', ["line 3, field `text` is null"]),
        ('{"text": {"a": 1}}', ["line 3, field `text` is an object"]),
        ('["One.", "Two."]', ["line 3 is a list, not a string"]),
        ("true", ["line 3 is a boolean, not a string"]),
        ('"half \\ud83d of it"', ["line 3", "half of a surrogate pair", "character 5"]),
    ],
)
def test_a_bad_jsonl_line_is_named(tmp_path: Path, line: str, parts: list[str]) -> None:
    message = refusal(write(tmp_path, "a.jsonl", f'"fine"\n\n{line}\n"fine"\n'))
    for part in ["'a.jsonl'", *parts]:
        assert part in message
    assert str(tmp_path) not in message


@pytest.mark.parametrize(
    ("content", "blank"),
    [
        (jsonl("One.", "Two."), 0),
        (jsonl("One.", "", {"text": " \n"}, {"text": "\u3000"}, "Two."), 3),
        (jsonl("", "One.", ""), 2),
        ('\n\n"One."\n\n  \n"Two."\n\n\n', 2),
    ],
)
def test_blank_rows_are_counted_and_warned_of(tmp_path: Path, content: str, blank: int) -> None:
    corpus = load_corpus(write(tmp_path, "a.jsonl", content))
    assert corpus.blank == blank
    warning = f"{blank} blank row(s) of the corpus 'a.jsonl' were omitted: they hold no text"
    assert corpus.warnings == ((warning,) if blank else ())


@pytest.mark.parametrize(
    ("content", "blank"),
    [
        ("One.\n\n\n\n\nTwo.\n\n\n", 0),  # blank lines separate documents
        ("\f\nOne.\n\f\n \n\f\n\f\nTwo.\n\f\n", 2),
    ],
)
def test_blank_documents_between_form_feeds_are_counted(tmp_path: Path, content: str, blank: int) -> None:
    assert load_corpus(write(tmp_path, "a.txt", content)).blank == blank


# --- either


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_line_ends_and_byte_order_mark_do_not_matter(tmp_path: Path, name: str) -> None:
    texts = ["First line.\nSecond: café, 100 °C.", "Another."]
    content = "\n\f\n".join(texts) if name == "a.txt" else jsonl(*texts)
    plain = load_corpus(write(tmp_path, name, content))
    assert plain.texts == tuple(texts)
    for data in (
        b"\xef\xbb\xbf" + content.encode(),
        content.replace("\n", "\r\n").encode(),
        content.replace("\\n", "\\r\\n").encode(),
        content.replace("\n", "\r").encode(),
    ):
        assert load_corpus(write(tmp_path, name, data)) == plain


def test_bytes_counts_utf8_and_not_characters(tmp_path: Path) -> None:
    assert load_corpus(write(tmp_path, "a.jsonl", '"né"\n"😀"')).bytes == 3 + 4


def test_the_name_is_the_file_name_and_the_home_folder_is_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "private").mkdir()
    write(tmp_path / "private", "Notes.TXT", "Some text.")
    corpus = load_corpus(os.path.join("~", "private", "Notes.TXT"))
    assert corpus.name == "Notes.TXT"
    assert corpus.texts == ("Some text.",)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("content", ["", " \n\t\n", b"\xef\xbb\xbf", "\f\n\f\n"], ids=["0", "blank", "bom", "feeds"])
def test_an_empty_corpus_is_refused(tmp_path: Path, name: str, content: str | bytes) -> None:
    message = refusal(write(tmp_path, name, content))
    assert name in message
    assert "holds no text" in message


def test_blank_documents_alone_are_an_empty_corpus(tmp_path: Path) -> None:
    assert "holds no text" in refusal(write(tmp_path, "a.jsonl", jsonl("", {"text": " \n\u00a0"})))


@pytest.mark.parametrize(
    ("data", "offset", "byte", "encoding"),
    [
        (b"caf\xe9 au lait", 3, "0xe9", "WINDOWS-1252"),
        (b"\xef\xbb\xbfcaf\xe9 au lait", 6, "0xe9", "WINDOWS-1252"),
        (b"\xff\xfet\x00e\x00", 0, "0xff", "UTF-16"),
    ],
)
def test_another_encoding_is_refused_with_its_offset(
    tmp_path: Path, data: bytes, offset: int, byte: str, encoding: str
) -> None:
    message = refusal(write(tmp_path, "a.txt", data))
    assert f"offset {offset})" in message
    assert byte in message
    assert f"iconv -f {encoding} -t UTF-8" in message


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("text", ['"Plain English."\n', '"Ein Übermaß, 100 °C"\n', '"中文文本, abc"\n'])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_wide_characters_without_a_mark_are_refused(tmp_path: Path, name: str, text: str, encoding: str) -> None:
    message = refusal(write(tmp_path, name, text.encode(encoding)))
    assert f"iconv -f {encoding.replace('-le', 'LE').replace('-be', 'BE').upper()} -t UTF-8" in message


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_wide_characters_with_a_mark_are_refused(tmp_path: Path, encoding: str) -> None:
    assert f"iconv -f {encoding.upper()} -t" in refusal(write(tmp_path, "a.txt", "One.".encode(encoding)))


def test_a_single_nul_is_named(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, "a.txt", "café\0 au lait"))
    assert "contains NUL bytes (byte 0x00 at offset 5)" in message


def test_a_missing_file_is_refused_with_near_names(tmp_path: Path) -> None:
    write(tmp_path, "articles.jsonl", '"x"')
    write(tmp_path, "notes.txt", "x")
    write(tmp_path, "articles.csv", "x")
    misspelt = refusal(str(tmp_path / "artikles.jsonl"))
    assert "did you mean 'articles.jsonl'?" in misspelt
    assert ".csv" not in misspelt
    assert "did you mean 'articles.jsonl'?" in refusal(str(tmp_path / "articles"))
    assert "did you mean" not in refusal(str(tmp_path / "qqqq.txt"))
    assert "no corpus" in refusal(str(tmp_path / "no-such-folder" / "notes.txt"))
    assert "did you mean 'builtin'?" in refusal("builtn")
    assert "`builtin`, `pydoc`, or the path of a .txt or .jsonl file" in refusal("wikitext-2")


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "  ",
        "~no-such-user/a.txt",
        pytest.param("x" * 5000 + ".txt", id="long"),
        "a\0b.txt",
        "two\nlines.txt",
    ],
)
def test_an_odd_spec_is_refused(spec: str) -> None:
    assert "no corpus" in refusal(spec)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert "is a folder" in refusal(str(tmp_path))
    (tmp_path / "looks-like.txt").mkdir()
    assert "is a folder" in refusal(str(tmp_path / "looks-like.txt"))


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a", "a.txt.gz"])
def test_another_extension_is_refused(tmp_path: Path, name: str) -> None:
    message = refusal(write(tmp_path, name, '"text"'))
    assert "has the extension" in message
    assert "convert it to .txt" in message
    assert ".jsonl" in message


def test_an_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    spec = write(tmp_path, "a.txt", "x")
    # Permission bits do not stop the superuser, under whom tests often run.
    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert "cannot be read (Permission denied)" in refusal(spec)


# --- the digest


def test_txt_and_jsonl_of_equal_documents_are_one_corpus(tmp_path: Path) -> None:
    texts = ["One.\n\nMore of one.", "Two."]
    forms = {
        "blank.txt": "\n\n\n".join(texts) + "\n",
        "feed.txt": "\n\f\n".join(texts),
        "strings.jsonl": jsonl(*texts),
        "objects.jsonl": jsonl(*({"text": text, "id": 1} for text in texts)),
    }
    corpora = [load_corpus(write(tmp_path, name, content)) for name, content in forms.items()]
    assert [corpus.name for corpus in corpora] == list(forms)
    assert {corpus.texts for corpus in corpora} == {tuple(texts)}
    assert len({corpus.digest for corpus in corpora}) == 1


def test_the_digest_depends_on_document_boundaries() -> None:
    splits = [["ab", "c"], ["a", "bc"], ["abc"], ["a", "b", "c"], ["ab\nc"], ['ab","c']]
    assert len({Corpus.from_texts("x", texts).digest for texts in splits}) == len(splits)


def test_the_digest_does_not_depend_on_the_name() -> None:
    assert Corpus.from_texts("x", ["a"]).digest == Corpus.from_texts("y", ["a"]).digest


@pytest.mark.slow(1)
@given(DOCUMENTS, DOCUMENTS)
def test_equal_digests_mean_equal_texts_in_equal_order(one: list[str], other: list[str]) -> None:
    a, b = Corpus.from_texts("a", one), Corpus.from_texts("b", other)
    assert a.texts == tuple(one)
    assert (a.digest == b.digest) == (one == other)


@pytest.mark.slow(1)
@given(DOCUMENTS, st.data())
def test_any_change_of_text_or_order_changes_the_digest(texts: list[str], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(texts) - 1))
    changes = {
        "appended": [*texts, "x"],
        "edited": [*texts[:index], texts[index] + "x", *texts[index + 1 :]],
        "doubled": [*texts[:index], texts[index], *texts[index:]],
        "reversed": texts[::-1],
    }
    before = Corpus.from_texts("a", texts).digest
    for name, changed in changes.items():
        assert (Corpus.from_texts("a", changed).digest == before) == (changed == texts), name


@pytest.mark.slow(1)
@given(DOCUMENTS, st.data())
def test_the_digest_ignores_how_json_spells_the_texts(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], data: st.DataObject
) -> None:
    lines = []
    for text in texts:
        pairs = data.draw(st.permutations([("text", text), ("id", 1), ("register", "x")]))
        ascii_only, end = data.draw(st.booleans()), data.draw(st.sampled_from(["\n", "\r\n", "\n\n"]))
        lines.append(json.dumps(dict(pairs), ensure_ascii=ascii_only) + end)
    path = write(tmp_path_factory.mktemp("corpus"), "a.jsonl", "".join(lines))
    assert load_corpus(path).texts == tuple(texts)
    assert load_corpus(path).digest == Corpus.from_texts("b", texts).digest


@given(DOCUMENTS)
def test_canonical_form_is_stable(texts: list[str]) -> None:
    once = Corpus.from_texts("a", [f"\n \n{text}\r\n" for text in texts])
    assert Corpus.from_texts("a", once.texts) == once


# --- the corpus of the standard library


def test_pydoc_is_pythons_reference_in_alphabetical_order() -> None:
    from pydoc_data.topics import topics

    corpus = load_corpus("pydoc")
    assert corpus.name == "pydoc"
    assert corpus.bytes > 300_000
    assert len(corpus.texts) == len(topics)
    assert corpus.texts[0] == Corpus.from_texts("x", [topics[min(topics)]]).texts[0]
    assert load_corpus("pydoc").digest == corpus.digest


def test_a_python_without_pydoc_topics_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    assert "not part of this Python: use corpus=builtin" in refusal("pydoc")


@pytest.mark.parametrize("kind", ["fifo", "device"])
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes of a name")
def test_pipes_and_devices_are_refused_without_reading(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.txt"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    assert "is a pipe or a device, not a regular file: copy its text to a file" in refusal(str(path))


def test_a_file_too_large_for_memory_is_refused_before_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.jsonl"
    with path.open("wb") as file:
        file.truncate(10 * 2**30)  # sparse
    monkeypatch.setattr(corpora, "available_bytes", lambda: 20 * 2**30)
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail("read"))
    assert refusal(str(path)) == (
        "corpus 'x.jsonl' is 10.0 GiB, and reading it takes about 60.0 GiB of memory where 20.0 GiB are free: give a part of it"
    )
