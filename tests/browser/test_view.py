"""The check itself: a page that complains fails its test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import watched_page

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

pytestmark = pytest.mark.browser


def look_at_a_page_that(reader: BrowserContext, script: str, *, reopened: bool = False) -> None:
    """Be a test whose page runs a script, in its first tab or in one that was opened again."""
    with watched_page(reader) as view:
        page = view.reopened() if reopened else view.page
        page.evaluate(f"() => {{ {script}; setTimeout(() => globalThis.said = true, 1) }}")
        page.wait_for_function("() => globalThis.said")


@pytest.mark.parametrize(
    ("script", "reopened"),
    [
        pytest.param("console.error('on purpose')", False, id="error on the console"),
        pytest.param("Promise.reject(Error('on purpose'))", False, id="promise that nobody catches"),
        pytest.param("setTimeout(() => { throw Error('on purpose') })", True, id="script that fails, opened again"),
    ],
)
def test_what_a_page_complains_of_fails_the_test(reader: BrowserContext, script: str, reopened: bool) -> None:
    with pytest.raises(AssertionError, match="on purpose"):
        look_at_a_page_that(reader, script, reopened=reopened)


def test_other_messages_do_not(reader: BrowserContext) -> None:
    look_at_a_page_that(reader, "console.log('a word'); console.warn('a warning')")
