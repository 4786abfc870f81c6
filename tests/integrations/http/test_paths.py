"""Which paths a rule is about: nothing that a view answers escapes its rule."""

import pytest

from sluicegate.integrations.http.paths import matcher, normalize_path


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        (
            "/search",
            ["/search", "/search/", "//search", "/SEARCH"],
            ["/search/x", "/searching", "/"],
        ),
        ("/", ["/", "", "//"], ["/a"]),
        ("/api/*", ["/api", "/api/", "/api/x/y", "//api//x", "/API/x", "/api/a\nb"], ["/apis"]),
        ("/api*", ["/api", "/apis", "/api/x"], ["/ap"]),
        ("*", ["/", "", "/x/y"], []),
        ("/*", ["/", "", "/x/y"], []),
        (
            "/users/{id}/posts",
            ["/users/7/posts", "/Users/a.b/posts/", "/users/a\nb/posts"],
            ["/users/posts", "/users/7/8/posts", "/users/7/posts/1", "/users//posts"],
        ),
        ("/files/{name}/*", ["/files/a", "/files/a/b/c"], ["/files"]),
        ("/files/{name:path}", ["/files", "/files/a", "/files/a/b/c"], ["/filesx", "/file"]),
        ("/users/{id:int}", ["/users/7"], ["/users/7/8"]),
        ("/v{number}/x", ["/v1/x"], ["/v/x"]),
        ("/a.b", ["/a.b"], ["/aXb"]),
    ],
)
def test_a_pattern_means_these_paths(pattern: str, inside: list[str], outside: list[str]) -> None:
    matches = matcher(pattern)
    assert [path for path in inside if not matches(normalize_path(path))] == []
    assert [path for path in outside if matches(normalize_path(path))] == []


@pytest.mark.parametrize("pattern", ["api", "/a*b", "/*/x", "/{a/b}", "/{a", "/a}", "/<id>", ""])
def test_a_pattern_that_means_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="path"):
        matcher(pattern)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("/search", "/search\n"),
        ("/search", "/search/\n"),
        ("/u/{id}/posts", "/u/7/posts\n"),
        ("/files/{name:path}", "/files/"),
        ("/files/{name:path}", "/files/a/b"),
        ("/{name:path}", "/"),
        ("/f/{name:path}/meta", "/f//meta"),
    ],
)
def test_what_starlette_routes_to_a_view_falls_under_its_rule(pattern: str, path: str) -> None:
    assert matcher(pattern)(normalize_path(path))


def test_a_pattern_that_a_long_path_could_stall_is_refused() -> None:
    with pytest.raises(ValueError, match="at most one {name:path}"):
        matcher("/{a:path}/b/{c:path}")
