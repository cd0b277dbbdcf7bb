"""URLs are shown and recorded without secrets, and still tell inputs apart."""

from __future__ import annotations

import pytest

from flowvec.texts.urls import is_url, name_of, recorded, shown, shown_command, without_secrets

SIGNED_BY_S3 = (
    "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=hush%2F20261128%2Fus-east-1&X-Amz-Date="
    "20261128T000000Z&X-Amz-Expires=3600&X-Amz-Security-Token=hush&X-Amz-Signature=hush"
)
# Each URL with another secret, and what is recorded of both.
WITH_SECRETS = [
    ("abfs://c@account/a.txt?account_key={}", "abfs://c@account/a.txt"),
    ("abfs://account:{}@c/a.txt", "abfs://c/a.txt"),
    ("https://user:{}@host:80/a@b.txt", "https://host:80/a@b.txt"),
    ("https://user:pass{}@word@host/a.txt", "https://host/a.txt"),
    ("https://{}@host/a.txt", "https://host/a.txt"),
    ("s3://key:{}/x@bucket/a.txt?region=r", "s3://bucket/a.txt?region=r"),
    ("s3://b/a.txt?region=r&secret_key={}&access_key={}", "s3://b/a.txt?region=r"),
    ("s3://b/a.txt?&Secret%5FKey={}", "s3://b/a.txt"),
    ("s3://b/a.txt?endpoint_override=http://u:{}@h:1", "s3://b/a.txt?endpoint_override=h:1"),
    ("s3://b/a.txt?endpoint_override=http%3A%2F%2Fu:{}%40h", "s3://b/a.txt?endpoint_override=h"),
    ("https://h/a.txt?sv=2024&se=2026{}&sp=r&sr=b&sig={}", "https://h/a.txt"),
    ("https://h/a.txt?X-Goog-Credential=x&X-Goog-Signature={}", "https://h/a.txt"),
    ("https://h/a.txt?Expires={}&Policy={}&Signature={}&Key-Pair-Id={}", "https://h/a.txt"),
    ("https://h/a.txt?AWSAccessKeyId={}&Expires={}&Signature={}", "https://h/a.txt"),
    ("https://h/a.txt?GoogleAccessId={}&Expires={}&Signature={}", "https://h/a.txt"),
    ("https://h/a.txt?versionId=1&sig={}", "https://h/a.txt?versionId=1"),
    ("https://h/a.txt?key={}", "https://h/a.txt"),
    ("https://h/a.txt?token={}#{}", "https://h/a.txt"),
    ("https://h/a.txt?%74oken={}", "https://h/a.txt"),
    ("https://h/a.txt?password={};user={}", "https://h/a.txt"),
    ("simplecache::https://u:{}@h/a.txt?sig={}", "simplecache::https://h/a.txt"),
    ("zip://a.txt::https://u:{}@h/a.zip?sig={}", "zip://a.txt::https://h/a.zip"),
    ("hdfs://me@host/a.txt", "hdfs://me@host/a.txt"),
]


@pytest.mark.parametrize(("url", "expected"), WITH_SECRETS)
def test_a_secret_is_neither_recorded_nor_part_of_what_an_input_is(url: str, expected: str) -> None:
    for secret in ("hush-one", "hush%2Btwo"):
        given = url.replace("{}", secret)
        assert is_url(given)
        assert recorded(given) == expected
        assert recorded(expected) == expected
        assert "hush" not in shown(given)
        assert "hush" not in without_secrets(f"404, url='{given}'", given)
        assert "hush" not in without_secrets(f"404, url='{given}'")


def test_a_signed_url_of_s3_is_recorded_without_its_signature() -> None:
    assert recorded(f"https://b.s3.amazonaws.com/a.txt?{SIGNED_BY_S3}&versionId=x") == (
        "https://b.s3.amazonaws.com/a.txt?versionId=x"
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://h/a.txt?versionId=1&sig=x", "https://h/a.txt?versionId=2&sig=x"),
        ("gs://b/a.txt?generation=1", "gs://b/a.txt?generation=2"),
        ("https://h/get?id=1", "https://h/get?id=2"),
        ("https://h/get?one", "https://h/get?two"),
        ("https://h/get?author=a", "https://h/get?author=b"),
        ("https://h/get?keyword=a", "https://h/get?keyword=b"),
        ("https://h:1/a@b.txt", "https://h:2/c@b.txt"),
        ("abfs://one@account/a.txt", "abfs://two@account/a.txt"),
        ("s3://b/a.txt?endpoint_override=one", "s3://b/a.txt?endpoint_override=two"),
        ("memory://a/b:c@d.txt", "memory://a/b:e@d.txt"),
    ],
)
def test_inputs_that_differ_are_recorded_differently(one: str, other: str) -> None:
    assert recorded(one) != recorded(other)
    for url in (one, other):
        assert recorded(recorded(url)) == recorded(url)


def test_an_option_that_could_be_a_secret_is_recorded_as_a_digest() -> None:
    assert recorded("https://h/a.txt?code=hush") == "https://h/a.txt?code=sha256-dc8331bcb228"
    assert "hush" not in recorded("https://h/a.txt?hush")
    assert "hush" not in shown("https://h/a.txt?code=hush")


def test_the_order_of_options_does_not_matter() -> None:
    assert recorded("s3://b/a?region=r&version=1") == recorded("s3://b/a?version=1&region=r")


def test_what_is_shown_has_versions_and_no_options_of_the_connection() -> None:
    url = "s3://b/a.txt?region=r&endpoint_override=h:1&scheme=http&versionId=7"
    assert shown(url) == "s3://b/a.txt?versionId=7"


def test_a_path_is_recorded_as_it_is() -> None:
    for path in ("a b/c?d=e.txt", "C:/key:x@y.txt", "C:\\a?token=b", "-", "a::b.txt"):
        assert recorded(path) == shown(path) == name_of(path) == path


def test_a_url_that_lost_a_slash_is_shown_without_secrets() -> None:
    assert not is_url("https:/user:hush@host/a.txt")
    assert shown("https:/user:hush@host/a.txt?sig=hush") == "https:/host/a.txt"


def test_a_librarys_message_is_shown_without_parts_of_the_url() -> None:
    url = "https://user:hush%2Fone@host/a.txt?token=hush%2Btwo&versionId=3"
    text = "refused user and hush/one with 'hush+two' at //user:hush%2Fone@host/a.txt"
    assert "hush" not in without_secrets(text, url)
    assert without_secrets("no such file", url) == "no such file"


def test_a_secret_that_is_part_of_another_leaves_nothing_of_it() -> None:
    secrets = ["hush", *(f"hush{i}and-more" for i in range(8))]
    for other in secrets[1:]:
        url = f"s3://b/x?secret=hush&endpoint_token={other}"
        told = without_secrets(f"refused: {other} and hush", url)
        assert told == "refused: *** and ***", told


def test_a_command_is_shown_as_it_was_given_unless_it_has_a_secret() -> None:
    words = ["flowvec", "encode", "a b.txt", "s3://b/a?region=r&anon=true", "-o=s3://b/o?scheme=s"]
    assert shown_command(words) == (
        "flowvec encode 'a b.txt' 's3://b/a?region=r&anon=true' '-o=s3://b/o?scheme=s'"
    )
    secret = ["flowvec", "s3://k:hush@b/a?region=r", "--out=https://h/a?token=hush&version=1"]
    assert shown_command(secret) == "flowvec 's3://b/a?region=r' '--out=https://h/a?version=1'"
