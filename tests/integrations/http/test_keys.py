"""Whose limit it is: what a client writes must not change it in his favour."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.integrations import by_address, by_header, by_user
from sluicegate.integrations.http.keys import bounded
from sluicegate.integrations.http.request import EnvironRequest, ScopeRequest

MakeRequest = Callable[..., ScopeRequest]
PROXIES = ["10.0.0.0/8", "2001:db8:ffff::/48"]


def through(make_request: MakeRequest, peer: str | None, *lines: str, header: str = "") -> object:
    name = header or "X-Forwarded-For"
    request = make_request(client=peer, headers=[(name, line) for line in lines])
    return by_address(PROXIES, header=name)(request)


def test_without_listed_proxies_the_header_is_not_looked_at(make_request: MakeRequest) -> None:
    request = make_request(client="203.0.113.7", headers=[("X-Forwarded-For", "1.1.1.1")])
    assert by_address()(request) == "203.0.113.7"


def test_a_spoofed_header_of_a_stranger_does_not_change_the_key(make_request: MakeRequest) -> None:
    for spoofed in ("1.1.1.1", "10.0.0.1", "1.1.1.1, 10.0.0.1", "", ",,,", "for=1.1.1.1"):
        assert through(make_request, "203.0.113.7", spoofed) == "203.0.113.7"


@pytest.mark.parametrize(
    ("forwarded", "key"),
    [
        ("198.51.100.9", "198.51.100.9"),
        ("1.1.1.1, 198.51.100.9", "198.51.100.9"),  # the left part is the client's own word
        ("1.1.1.1, 10.9.9.9, 198.51.100.9, 10.0.0.2", "198.51.100.9"),
        ("198.51.100.9:5555", "198.51.100.9"),
        ("[2001:db8:1:2:3::4]:443", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:aaaa::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:198.51.100.9", "198.51.100.9"),
        (" 198.51.100.9 ", "198.51.100.9"),
        ("10.0.0.7", "10.0.0.7"),  # a request of the proxy's own
        ("198.51.100.9, unknown", "10.0.0.1"),  # the proxy does not know: its own key
        ("198.51.100.9, 010.0.0.3", "10.0.0.1"),
        ("198.51.100.9,", "10.0.0.1"),
        ("", "10.0.0.1"),
        ("garbage" * 99, "10.0.0.1"),
        ("1.1.1.1, nonsense, 10.0.0.3", "10.0.0.3"),
    ],
)
def test_the_header_is_walked_from_the_right_past_our_proxies(
    make_request: MakeRequest, forwarded: str, key: str
) -> None:
    assert through(make_request, "10.0.0.1", forwarded) == key


def test_of_several_lines_the_last_is_the_proxys(make_request: MakeRequest) -> None:
    assert through(make_request, "10.0.0.1", "1.1.1.1", "198.51.100.9") == "198.51.100.9"
    environ = {"REMOTE_ADDR": "10.0.0.1", "HTTP_X_FORWARDED_FOR": "1.1.1.1,198.51.100.9"}
    assert by_address(PROXIES)(EnvironRequest(environ)) == "198.51.100.9"


@pytest.mark.parametrize(
    ("forwarded", "key"),
    [
        ("for=198.51.100.9", "198.51.100.9"),
        ("For=198.51.100.9;proto=https;by=10.0.0.1", "198.51.100.9"),
        ('for="[2001:db8:1:2::4]:4711"', "2001:db8:1:2::/64"),
        ("for=1.1.1.1, for=198.51.100.9;proto=http, for=10.0.0.4", "198.51.100.9"),
        ('for="1.1.1.1, for=198.51.100.9', "198.51.100.9"),  # an open quote swallows nothing
        ("for=1.1.1.1, for=_hidden", "10.0.0.1"),
        ("for=1.1.1.1, for=unknown", "10.0.0.1"),
        ("for=1.1.1.1, proto=http", "10.0.0.1"),
        ("for=1.1.1.1;for=2.2.2.2", "10.0.0.1"),
        ('for=1.1.1.1;by="a,b"', "10.0.0.1"),
    ],
)
def test_forwarded_is_read_when_it_is_chosen(
    make_request: MakeRequest, forwarded: str, key: str
) -> None:
    assert through(make_request, "10.0.0.1", forwarded, header="Forwarded") == key


def test_one_header_is_chosen_and_the_other_is_air(make_request: MakeRequest) -> None:
    request = make_request(
        client="10.0.0.1", headers=[("Forwarded", "for=1.1.1.1"), ("X-Real-IP", "2.2.2.2")]
    )
    assert by_address(PROXIES)(request) == "10.0.0.1"
    assert by_address(PROXIES, header="x-real-ip")(request) == "2.2.2.2"


@given(
    garbage=st.text(st.characters(codec="latin-1", exclude_characters="\r\n"), max_size=300),
    sure=st.sampled_from(["198.51.100.9", "198.51.100.9, 10.0.0.2", "unknown", "10.0.0.3"]),
)
def test_whatever_stands_to_the_left_changes_nothing(garbage: str, sure: str) -> None:
    def key(text: str) -> object:
        headers = [(b"x-forwarded-for", text.encode("latin-1"))]
        scope = {"type": "http", "path": "/", "client": ("10.0.0.1", 1), "headers": headers}
        return by_address(PROXIES)(ScopeRequest(scope))

    if sure == "10.0.0.3":  # the walk goes on to the left of a proxy, and must only not raise
        assert isinstance(key(f"{garbage},{sure}"), str)
    else:
        assert key(f"{garbage},{sure}") == key(sure)


def test_an_ipv6_client_owns_a_network_and_has_one_key(make_request: MakeRequest) -> None:
    key = by_address()
    keys = {key(make_request(client=f"2001:db8:1:2::{number:x}")) for number in range(1, 50)}
    assert keys == {"2001:db8:1:2::/64"}
    wider = by_address(ipv6_prefix=48)
    assert wider(make_request(client="2001:db8:1:9::1")) == "2001:db8:1::/48"
    assert key(make_request(client="::ffff:203.0.113.7")) == "203.0.113.7"


def test_all_that_come_through_a_unix_socket_are_one_key_or_a_proxy(
    make_request: MakeRequest,
) -> None:
    headers = [("X-Forwarded-For", "198.51.100.9")]
    for request in (
        make_request(client=None, headers=headers),
        make_request(client="", headers=headers),
        EnvironRequest({"REMOTE_ADDR": "", "HTTP_X_FORWARDED_FOR": "198.51.100.9"}),
        EnvironRequest({"HTTP_X_FORWARDED_FOR": "198.51.100.9"}),
    ):
        assert by_address()(request) == "unix"
        assert by_address(["10.0.0.0/8"])(request) == "unix"
        assert by_address(["unix"])(request) == "198.51.100.9"


def test_a_header_is_a_key_and_without_it_the_address(make_request: MakeRequest) -> None:
    key = by_header("X-Api-Key")
    assert key(make_request(headers=[("x-api-key", "abc")])) == "x-api-key=abc"
    assert key(make_request()) == "203.0.113.7"
    assert key(make_request(headers=[("x-api-key", "")])) == "203.0.113.7"
    assert by_header("x", otherwise=lambda _: "nobody")(make_request()) == "nobody"


def test_a_header_cannot_pass_for_an_address_nor_for_a_digest(make_request: MakeRequest) -> None:
    key = by_header("x-api-key")
    long = "k" * 5000
    digest = key(make_request(headers=[("x-api-key", long)]))
    assert isinstance(digest, str)
    assert len(digest) < 60
    assert key(make_request(headers=[("x-api-key", "203.0.113.7")])) != key(make_request())
    assert key(make_request(headers=[("x-api-key", digest)])) != digest
    assert key(make_request(headers=[("x-api-key", digest.removeprefix("x-api-key#"))])) != digest
    assert key(make_request(headers=[("x-api-key", long + "1")])) != digest


def test_a_user_is_whom_the_framework_knows(make_request: MakeRequest) -> None:
    key = by_user()
    ann = SimpleNamespace(is_authenticated=True, pk=7)
    nobody = SimpleNamespace(is_authenticated=False, pk=None)
    named = SimpleNamespace(is_authenticated=True, username="ann")
    assert key(make_request(user=ann)) == "user=7"
    assert key(make_request(user=named)) == "user=ann"
    assert key(make_request(user=nobody)) == "203.0.113.7"
    assert key(make_request()) == "203.0.113.7"
    assert key(EnvironRequest({"REMOTE_USER": "ann"})) == "user=ann"
    assert by_user(lambda request: request.header("x-user"))(
        make_request(headers=[("x-user", "bob")])
    ) == ("user=bob")


def test_starlettes_user_without_an_identity_has_its_name(make_request: MakeRequest) -> None:
    from starlette.authentication import SimpleUser, UnauthenticatedUser

    assert by_user()(make_request(user=SimpleUser("ann"))) == "user=ann"
    assert by_user()(make_request(user=UnauthenticatedUser())) == "203.0.113.7"


def test_keys_are_bounded() -> None:
    assert bounded("a" * 200) == "a" * 200
    assert len(str(bounded("a" * 201))) == 40
    assert len(str(bounded("\u20ac" * 67))) == 40  # 201 bytes
    assert bounded(b"a" * 999) != bounded(b"a" * 998)
    assert bounded(("a", 1)) == ("a", 1)
    assert (bounded(10**400), len(str(bounded(10**500)))) == (10**400, 40)
    assert len(str(bounded(tuple(range(99))))) < 100
    long = bounded(("a" * 150, "b" * 150))
    assert len(str(long)) < 100
    assert long != bounded(("a" * 150, "b" * 149))
    assert bounded(("a", 5, b"b" * 201)) == ("a", 5, bounded(b"b" * 201))
    assert bounded(12) == 12


def test_wrong_arguments_are_told_at_once() -> None:
    with pytest.raises(ValueError, match="'10.0.0.1/8'.*host bits"):
        by_address(["10.0.0.1/8"])
    with pytest.raises(TypeError, match=r"like \['10.0.0.0/8'\]"):
        by_address("10.0.0.0/8")
    with pytest.raises(ValueError, match="1 to 128 bits, got 0"):
        by_address(ipv6_prefix=0)
    with pytest.raises(ValueError, match="expected a header name"):
        by_header("x api key")
    with pytest.raises(ValueError, match="expected a header name"):
        by_address(header="")


@pytest.mark.parametrize("tail", ['"a,for=6.6.6.6"', '"a,for=6.6.6.6;x=y"', '"a\\",for=6.6.6.6"'])
def test_a_comma_in_a_quoted_text_of_forwarded_buys_no_other_key(tail: str) -> None:
    environ = {"REMOTE_ADDR": "10.0.0.1", "HTTP_FORWARDED": f"for=1.2.3.4;host={tail}"}
    key = by_address(trusted=["10.0.0.0/8"], header="forwarded")
    assert key(EnvironRequest(environ)) != "6.6.6.6"


def test_a_users_id_may_be_a_number() -> None:
    assert by_user(lambda _: 7)(EnvironRequest({})) == "user=7"  # type: ignore[arg-type,return-value]
