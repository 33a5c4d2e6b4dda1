"""The web page in a browser, against a server that says what a test wants."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from page_server import Script, serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright_api.expect
expect.set_options(timeout=20000)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium in PATH")

HOSTILE = """<img src="http://127.0.0.1:9/x" onerror="window.hurt=1"><script>window.hurt=1</script>
[x](javascript:window.hurt=1) [y](https://example.org/a_(b)) `<b>` **<i>bold</i>**

```html
<svg onload="window.hurt=1">
```
| a | <b>b</b> |
|---|---|
| <u>1</u> | 2 |
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """A page of its own, with what went wrong in it."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(15000)
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.strange: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", self._console)
        self.page.on("request", lambda r: r.url.startswith(url) or self.strange.append(r.url))
        self.page.goto(url)

    def _console(self, message: Any) -> None:
        # A refused request is the page's business, and shown by it.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.faults.append(message.text)

    def say(self, text: str) -> None:
        self.page.fill("#prompt", text)
        self.page.press("#prompt", "Enter")

    def whole(self) -> None:
        """Waits for the end of an answer."""
        expect(self.page.locator("#send")).to_be_visible()

    def end(self) -> None:
        self.context.close()
        assert self.faults == []
        assert self.strange == []


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def url(script: Script) -> Iterator[str]:
    with serving(script) as url:
        yield url


@pytest.fixture
def visit(browser: Any, url: str) -> Iterator[Visit]:
    visit = Visit(browser, url, viewport={"width": 1280, "height": 800})
    expect(visit.page.locator("#model-shown")).to_have_text("smollm2-135m")
    yield visit
    visit.end()


def test_an_answer_streams(visit: Visit, script: Script) -> None:
    script.reasoning = ["Hm", "."]
    visit.page.locator("#prompt").press_sequentially("One")
    visit.page.keyboard.press("Shift+Enter")
    visit.page.keyboard.type("two")
    visit.page.keyboard.press("Enter")
    visit.whole()
    expect(visit.page.locator(".user .body")).to_have_text("One\ntwo")
    expect(visit.page.locator(".assistant .body")).to_have_text("Hello, world!")
    expect(visit.page.locator(".reasoning div")).to_have_text("Hm.")
    foot = visit.page.locator(".assistant .figures-line")
    expect(foot).to_contain_text("6 tokens")
    expect(foot).to_contain_text("context 15 of 2048")
    [request] = script.requests
    assert request["messages"] == [{"role": "user", "content": "One\ntwo"}]
    assert request["stream"] is True and request["model"] == "smollm2-135m"
    assert not {"temperature", "max_tokens", "top_p", "top_k", "seed", "stop"} & set(request)


def test_what_a_model_says_is_text(visit: Visit, script: Script) -> None:
    script.pieces = list(HOSTILE)
    visit.say("x")
    visit.whole()
    body = visit.page.locator(".assistant .body")
    expect(body).to_contain_text("<script>window.hurt=1</script>")
    for tag in ("img", "script", "svg", "i", "u", "b"):
        assert body.locator(tag).count() == 0
    assert body.locator("a").evaluate_all("links => links.map(a => a.href)") == [
        "http://127.0.0.1:9/x",  # an address in a text may be followed, if somebody clicks
        "https://example.org/a_(b)",
    ]
    assert body.locator("a").last.get_attribute("rel") == "noopener noreferrer nofollow"
    expect(body.locator(".code pre")).to_have_text('<svg onload="window.hurt=1">')
    assert body.locator("td").all_text_contents() == ["<u>1</u>", "2"]
    assert visit.page.evaluate("window.hurt") is None


def test_markdown_that_grows_is_markdown_that_was_whole(visit: Visit) -> None:
    text = (
        "# A *b*\n\n1. one\n   - in\n   - in 2\n\n2. two\nmore\n- x\n\n> q\n> r\n\n***\n"
        "a_b_c 2*3*4 **b _i_** ~~s~~ \\*no\\* `` ` `` https://e.org/a.\n\n"
        "```py\nx\n\n```\nend\n```\nopen"
    )
    same = visit.page.evaluate(
        """async (text) => {
          const { MarkdownView } = await import("/ui/markdown.js");
          const [a, b] = [document.createElement("div"), document.createElement("div")];
          const grows = new MarkdownView(a);
          for (let i = 1; i <= text.length; i++) grows.show(text.slice(0, i));
          new MarkdownView(b).show(text);
          return [a.outerHTML, b.outerHTML];
        }""",
        text,
    )
    assert same[0] == same[1]
    for part in (
        "<h3>A <em>b</em></h3>", '<ol start="1"><li>one<ul><li>in</li><li>in 2</li></ul></li>',
        "<blockquote><p>q\nr</p></blockquote>", "<hr>", "a_b_c 2*3*4",
        "<strong>b <em>i</em></strong>", "<s>s</s> *no* <code>`</code>", ">https://e.org/a</a>.",
        "<p>end</p>", "<code>open</code>",
    ):  # fmt: skip
        assert part in same[0]


def test_escape_stops_and_the_server_sees_it(visit: Visit, script: Script) -> None:
    script.pieces = [f"{i} " for i in range(2000)]
    script.delay = 0.01
    visit.say("Count.")
    expect(visit.page.locator(".assistant .body")).to_contain_text("3 ")
    expect(visit.page.locator("#stop")).to_be_visible()
    expect(visit.page.locator("#live-running")).to_have_text("1")
    visit.page.keyboard.press("Escape")
    visit.whole()
    expect(visit.page.locator(".assistant .figures-line")).to_contain_text("stopped")
    expect(visit.page.locator("#live-running")).to_have_text("0")
    assert script.cancelled == 1


def test_regenerate_edit_and_new(visit: Visit, script: Script) -> None:
    visit.say("Hi")
    visit.whole()
    script.pieces = ["Other"]
    visit.page.click("[data-action=regenerate]")
    expect(visit.page.locator(".assistant .body")).to_have_text("Other")
    visit.whole()
    assert script.requests[1] == script.requests[0]
    visit.page.keyboard.press("Alt+r")
    visit.whole()
    visit.page.hover(".user")
    visit.page.click("[data-action=edit]")
    expect(visit.page.locator("#prompt")).to_have_value("Hi")
    assert visit.page.locator(".message").count() == 0
    visit.say("Ho")
    visit.whole()
    visit.say("again")
    visit.whole()
    assert [m["content"] for m in script.requests[-1]["messages"]] == ["Ho", "Other", "again"]
    visit.page.reload()
    assert visit.page.locator(".message").count() == 4
    visit.page.keyboard.press("Alt+n")
    assert visit.page.locator(".message").count() == 0
    expect(visit.page.locator("#empty")).to_be_visible()


def test_settings_go_into_the_request(visit: Visit, script: Script) -> None:
    page = visit.page
    page.select_option("[name=model]", "other")
    for name, value in {
        "system": "Be brief.", "temperature": "0", "max_tokens": "7", "top_p": "0.5", "top_k": "3",
        "min_p": "0.1", "repetition_penalty": "1.1", "seed": "0", "stop": "###",
    }.items():  # fmt: skip
        page.fill(f"[name={name}]", value)
    page.reload()
    expect(page.locator("#model-shown")).to_have_text("other")
    visit.say("Hi")
    visit.whole()
    [request] = script.requests
    assert request.pop("messages") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    assert request == {
        "model": "other", "temperature": 0, "max_tokens": 7, "top_p": 0.5, "top_k": 3, "min_p": 0.1,
        "repetition_penalty": 1.1, "seed": 0, "stop": ["###"], "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    page.fill("[name=temperature]", "9")
    visit.say("Not sent")
    expect(page.locator("#prompt")).to_have_value("Not sent")
    page.click("text=Reset")
    visit.page.focus("#prompt")
    visit.page.keyboard.press("Enter")
    visit.whole()
    assert "temperature" not in script.requests[1]


def test_a_refusal_is_shown_and_nothing_typed_is_lost(visit: Visit, script: Script) -> None:
    script.fail = (400, "the prompt has 9000 tokens; the context holds 2048")
    visit.say("A long text")
    expect(visit.page.locator("#notice")).to_have_text(script.fail[1])
    expect(visit.page.locator("#prompt")).to_have_value("A long text")
    assert visit.page.locator(".message").count() == 0
    script.fail = None
    visit.page.keyboard.press("Enter")
    visit.whole()
    expect(visit.page.locator(".assistant .body")).to_have_text("Hello, world!")
    expect(visit.page.locator("#notice")).to_be_hidden()


def test_the_live_view(visit: Visit, script: Script) -> None:
    page = visit.page
    expect(page.locator("#live-waiting")).to_have_text("3")
    expect(page.locator("#live-cache-text")).to_have_text("128 of 512 blocks, 64 kept")
    assert page.get_attribute("#live-cache", "aria-valuenow") == "25"
    visit.say("Hi")
    expect(page.locator("#live-ttft")).to_have_text("250 ms")
    expect(page.locator("#live-itl")).to_have_text("12.5 ms")
    expect(page.locator("#live-state")).to_have_text("live")


def test_a_key(browser: Any, url: str, script: Script) -> None:
    script.key = "secret-key"
    visit = Visit(browser, url, viewport={"width": 1280, "height": 800})
    expect(visit.page.locator("#notice")).to_have_text("a key is needed")
    expect(visit.page.locator("[name=key]")).to_be_focused()
    expect(visit.page.locator("#live-state")).to_have_text("needs a key")
    visit.page.keyboard.type("secret-key")
    expect(visit.page.locator("#model-shown")).to_have_text("smollm2-135m")
    expect(visit.page.locator("#notice")).to_be_hidden()
    visit.say("Hi")
    visit.whole()
    expect(visit.page.locator(".assistant .body")).to_have_text("Hello, world!")
    assert "secret" not in visit.page.evaluate("JSON.stringify(localStorage)")
    visit.end()


def test_themes(browser: Any, url: str) -> None:
    visit = Visit(browser, url, color_scheme="dark")
    color = "getComputedStyle(document.body).backgroundColor"
    dark = visit.page.evaluate(color)
    visit.page.emulate_media(color_scheme="light")
    light = visit.page.evaluate(color)
    assert dark != light
    visit.page.emulate_media(color_scheme="dark")
    visit.page.click("#theme")  # automatic → light
    assert visit.page.evaluate(color) == light
    visit.page.reload()
    assert visit.page.evaluate(color) == light
    visit.page.emulate_media(color_scheme="light")
    visit.page.click("#theme")
    assert visit.page.evaluate(color) == dark
    visit.end()


@pytest.mark.parametrize(("width", "height"), [(360, 740), (1280, 800)])
def test_it_fits(browser: Any, url: str, script: Script, width: int, height: int) -> None:
    script.pieces = ["word " * 200, "x" * 300, "\n```\n", "y" * 300, "\n```\n|a|b|\n|-|-|\n|1|2|\n"]
    visit = Visit(browser, url, viewport={"width": width, "height": height}, has_touch=True)
    page = visit.page
    expect(page.locator("#model-shown")).to_have_text("smollm2-135m")
    visit.say("x" * 500)
    visit.whole()
    overflow = (
        "document.documentElement.scrollWidth > innerWidth || log.scrollWidth > log.clientWidth"
    )
    assert page.evaluate(overflow) is False
    if width < 960:
        expect(page.locator("#panel")).to_be_hidden()
        page.tap("#panel-switch")
    expect(page.locator("#panel")).to_be_visible()
    assert page.evaluate(overflow) is False
    for name in ("#new", "#theme", "#panel-switch", "#send"):
        box = page.locator(name).bounding_box()
        assert box["height"] >= 40 and box["x"] >= 0 and box["x"] + box["width"] <= width
    if width < 960:
        page.keyboard.press("Escape")
        expect(page.locator("#panel")).to_be_hidden()
    visit.end()


def test_the_slash_key(visit: Visit) -> None:
    visit.page.focus("#log")
    visit.page.keyboard.press("/")
    expect(visit.page.locator("#prompt")).to_be_focused()
    visit.page.keyboard.type("a/b")
    expect(visit.page.locator("#prompt")).to_have_value("a/b")
