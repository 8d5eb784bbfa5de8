import base64
import hmac
from collections.abc import Sequence
from hashlib import sha256
from ipaddress import ip_address
from typing import Any

import pytest

from dagmaster.errors import Misconfigured
from dagmaster.orchestrator.callbacks import sign
from dagmaster.url_policy import Policy, Refused, check_url, is_public, policy_of, resolve

STRICT = Policy()
PUBLIC = "93.184.216.34"
NOT_PUBLIC = [
    *("127.0.0.1", "127.255.255.254", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
    *("169.254.169.254", "100.64.0.1", "100.127.255.255", "224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.2.1"),
    *("198.18.0.1", "192.88.99.1", "::", "::1", "fe80::1", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "2001:db8::1"),
    *(
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2002:a00:1::1",
        "2002:808:808::1",
        "100::1",
    ),
    *("2001:0:7f00:1::5db8:d822", "2001:0:5db8:d822:0:0:80ff:fffe"),
]
LITERALS = [
    *("127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0x7f.0.0.1", "017700000001", "0", "0.0.0.0"),
    *("[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[fe80::1]", "[64:ff9b::a9fe:a9fe]", "169.254.169.254"),
    *("10.0.0.1", "192.168.0.1", "172.16.5.5", "100.64.1.1", "localhost", "LOCALHOST", "localhost.", "a.localhost"),
    *("①②⑦.⓪.⓪.①", "127。0。0。1", "2852039166", "127.0.0.1.", "192.168.257"),
]


class Names:
    """A resolver with another result each time."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.queries: list[Any] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.queries.append((host, port))
        return self.answers.pop(0)


@pytest.mark.parametrize("text", NOT_PUBLIC)
def test_non_public_addresses_are_recognised(text: str) -> None:
    assert not is_public(ip_address(text))


@pytest.mark.parametrize("text", [PUBLIC, "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses_are_recognised(text: str) -> None:
    assert is_public(ip_address(text))


@pytest.mark.parametrize("host", LITERALS)
async def test_every_spelling_of_a_private_address_is_refused(host: str) -> None:
    with pytest.raises(Refused):
        check_url(f"https://{host}/hook", STRICT)
    with pytest.raises(Refused):
        await resolve(f"https://{host}:8443/hook", policy_of([], allow_http=True))


@pytest.mark.parametrize(
    "url",
    [
        *("", "nonsense", "//host/x", "https://", "https:///x", "ftp://host/x", "file:///etc/passwd", "gopher://h/"),
        *("http://example.com/", "https://user@example.com/", "https://user:pw@example.com/", "https://@example.com/"),
        *("https://example.com:0/", "https://example.com:99999/", "https://example.com:x/", "https://exa mple.com/"),
        *("https://example.com\\@10.0.0.1/", "https://example.com/\r\nHost: x", "https://[::1/", "https://a..b/"),
        *("https://-a.com/", "https://[fe80::1%25eth0]/", "https://e.com/" + "x" * 2048, "https://10.0.0.1#@e.com/"),
        *("https://e.com%2f@10.0.0.1/", "https://%31%32%37.0.0.1/", "https://" + "a" * 64 + ".com/"),
    ],
)
def test_a_url_that_is_not_plain_https_is_refused(url: str) -> None:
    with pytest.raises(Refused) as refused:
        check_url(url, STRICT)
    assert "pw" not in str(refused.value)


def test_a_plain_https_url_is_accepted() -> None:
    assert check_url("https://Hooks.Example.com/a?b=c", STRICT) == ("hooks.example.com", 443)
    assert check_url(f"https://{PUBLIC}:8443", STRICT) == (PUBLIC, 8443)
    assert check_url("https://bücher.example/", STRICT) == ("xn--bcher-kva.example", 443)
    assert check_url("http://example.com", policy_of([], allow_http=True)) == ("example.com", 80)


@pytest.mark.parametrize("allowed", ["inner.example", "INNER.example."])
def test_an_allowed_host_may_use_http(allowed: str) -> None:
    assert check_url("http://inner.example:81/", policy_of([allowed])) == ("inner.example", 81)
    with pytest.raises(Refused):
        check_url("http://other.inner.example/", policy_of([allowed]))


@pytest.mark.parametrize("allowed", ["10.1.2.3", "10.1.0.0/16", "127.0.0.1,10.1.2.3"])
async def test_a_private_address_can_be_allowed_by_address_or_network(allowed: str) -> None:
    target = await resolve("http://10.1.2.3/x", policy_of(allowed.split(",")))
    assert target.url == "http://10.1.2.3:80/x"
    with pytest.raises(Refused):
        await resolve("http://10.2.0.1/x", policy_of(allowed.split(",")))


async def test_a_name_that_resolves_to_an_allowed_network_needs_https() -> None:
    policy = policy_of(["10.1.0.0/16"])
    assert str((await resolve("https://a.example/", policy, Names(["10.1.2.3"]))).address) == "10.1.2.3"
    with pytest.raises(Refused, match="https"):
        await resolve("http://a.example/", policy, Names(["10.1.2.3"]))


@pytest.mark.parametrize("wrong", ["10.0.0.0/33", "a b", "https://x.example", "*"])
def test_an_invalid_allow_list_is_an_invalid_setting(wrong: str) -> None:
    with pytest.raises(Misconfigured, match="cannot be allowed"):
        policy_of([wrong])


async def test_one_private_address_among_public_ones_is_refused() -> None:
    for answer in ([PUBLIC, "10.0.0.1"], ["10.0.0.1", PUBLIC], [PUBLIC, "::1"], ["::ffff:169.254.169.254"]):
        with pytest.raises(Refused, match=r"rebind\.example"):
            await resolve("https://rebind.example/x?token=secret", STRICT, Names(answer))


async def test_the_first_resolution_is_kept() -> None:
    names = Names([PUBLIC], ["127.0.0.1"])
    target = await resolve("https://rebind.example:8443/x?y=1#z", STRICT, names)
    assert target.url == f"https://{PUBLIC}:8443/x?y=1"
    assert (target.host, target.authority) == ("rebind.example", "rebind.example:8443")
    assert names.queries == [("rebind.example", 8443)]


async def test_an_unresolvable_name_is_retryable() -> None:
    with pytest.raises(OSError, match="no address"):
        await resolve("https://new.example/", STRICT, Names([]))


async def test_an_ipv6_address_is_bracketed() -> None:
    target = await resolve("https://[2606:4700::1111]/x", STRICT)
    assert (target.url, target.authority) == ("https://[2606:4700::1111]:443/x", "[2606:4700::1111]")


def test_a_signature_covers_the_id_the_time_and_the_body() -> None:
    expected = base64.b64encode(hmac.new(b"key", b"m1.17.{}", sha256).digest()).decode()
    assert sign(b"key", "m1", 17, b"{}") == f"v1,{expected}"
    assert len({sign(b"key", *parts) for parts in (("m1", 17, b"{}"), ("m2", 17, b"{}"), ("m1", 18, b"{}"))}) == 3
