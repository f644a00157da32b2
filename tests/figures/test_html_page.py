"""The page as a document, and, where Chromium is installed, as it is seen and used."""

import html.parser
import json
import shutil
import subprocess

import keras
import numpy as np
import pytest

from keras_transformer.figures import Attention

SOURCE = ["a", "good", "day"]
TARGET = ["Guten", "Tag"]
UNKIND = [
    "</script><script>document.title='no'</script>",
    "<img src=x>",
    "<!-- data -->",
    "ß\u2028",
]


def attention(heads, target, source):
    scores = np.random.uniform(size=(heads, target, source))
    return scores / scores.sum(axis=-1, keepdims=True)


def translation_scores():
    return {
        "encoder": [attention(5, 3, 3) for _ in range(2)],
        "cross": [attention(7, 2, 3) for _ in range(3)],
    }


def translation_page(scores):
    rows, columns = {"encoder": SOURCE, "cross": TARGET}, {"encoder": SOURCE, "cross": SOURCE}
    return Attention(scores, rows, columns).page()


class Document(html.parser.HTMLParser):
    """What a browser makes of a page: its tags with their attributes, and their text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.texts.append("")

    def handle_data(self, data):
        if self.texts:
            self.texts[-1] += data

    def data(self):
        [index] = [i for i, (_, named) in enumerate(self.tags) if named.get("id") == "data"]
        return json.loads(self.texts[index])


def test_the_weights_and_tokens_are_in_the_page_to_three_digits():
    scores = translation_scores()
    cross, encoder = Document(translation_page(scores)).data()
    assert (encoder["name"], encoder["from"], encoder["to"]) == ("encoder", SOURCE, SOURCE)
    assert (cross["name"], cross["from"], cross["to"]) == ("cross", TARGET, SOURCE)
    for kind in (encoder, cross):
        expected = np.array(scores[kind["name"]])
        weights = np.array(kind["layers"]) / 1000
        np.testing.assert_allclose(weights, expected, atol=0.0005, rtol=0, err_msg=kind["name"])


def test_the_page_asks_for_nothing_outside_itself():
    page = translation_page(translation_scores())
    assert "http:" not in page and "https:" not in page and "//www" not in page
    document = Document(page)
    assert not [tag for tag, named in document.tags if {"src", "href", "action"} & set(named)]
    [policy] = [named for _, named in document.tags if "content-security" in str(named).lower()]
    assert policy["content"].startswith("default-src 'none'"), "and the browser forbids it"


def test_tokens_names_and_title_are_text_and_never_markup():
    scores = {"<b>": [attention(2, 4, 4)]}
    page = Attention(scores, {"<b>": UNKIND}, {"<b>": UNKIND}, "</title><b>ü <!-- data -->").page()
    document = Document(page)
    assert page.isascii(), "whatever encoding it is saved in"
    plain = Document(translation_page(translation_scores()))
    assert [tag for tag, _ in document.tags] == [tag for tag, _ in plain.tags], "no tag is new"
    [kind] = document.data()
    assert kind["name"] == "<b>" and kind["from"] == kind["to"] == UNKIND
    for tag in ("title", "h1"):
        [text] = [
            t for (name, _), t in zip(document.tags, document.texts, strict=True) if name == tag
        ]
        assert text.strip() == "Attention: </title><b>ü <!-- data -->", tag


def test_bfloat16_and_rows_with_nothing_to_look_at_are_shown():
    scores = keras.ops.cast([[[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]], "bfloat16")
    page = Attention({"cross": [scores]}, {"cross": TARGET}, {"cross": SOURCE}).page()
    assert Document(page).data()[0]["layers"] == [[[[500, 500, 0], [0, 0, 0]]]]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([np.zeros((2, 3, 3))], r"'cross': shape=\(2, 3, 3\), 2 target tokens, 3 source tokens"),
        ([np.zeros((2, 2, 3)), np.zeros((2, 2, 5))], r"'cross': shape=\(2, 2, 5\)"),
        ([np.zeros((1, 2, 2, 3))], r"of a batch at a time.*shape=\(1, 2, 2, 3\)"),
        ([np.zeros((0, 2, 3))], r"shape=\(0, 2, 3\)"),
        ([np.full((2, 2, 3), 7.0)], r"after the softmax. Received: 'cross': values from 7 to 7"),
        ([np.full((2, 2, 3), -0.1)], r"Received: 'cross': values from -0.1 to -0.1"),
        ([np.full((2, 2, 3), np.nan)], r"finite numbers only. Received: 12 values"),
        ([], r"at least one layer. Received: none for 'cross'"),
    ],
)
def test_scores_that_do_not_fit_are_refused(layers, message):
    with pytest.raises(ValueError, match=message):
        Attention({"cross": layers}, {"cross": TARGET}, {"cross": SOURCE}).page()


def test_names_that_differ_are_refused():
    with pytest.raises(ValueError, match=r"same names.*\['cross'\], \['cross'\] and \['own'\]"):
        Attention({"cross": []}, {"cross": TARGET}, {"own": SOURCE}).page()
    with pytest.raises(ValueError, match=r"at least one. Received: \[\], \[\] and \[\]"):
        Attention({}, {}, {}).page()


def seen(page, folder, actions):
    """The value of a JavaScript function body, run in the page by a browser without a window."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs Chromium")
    script = f"document.title = JSON.stringify((() => {{ {actions} }})())"
    path = folder / "page.html"
    path.write_text(page.replace("</body>", f"<script>{script}</script></body>"))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={folder}/profile", path.as_uri()]
    run = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    document = Document(run.stdout)
    return json.loads(document.texts[[tag for tag, _ in document.tags].index("title")])


PRESS = "const press = key => document.dispatchEvent(new KeyboardEvent('keydown', {key}));"
CHECKED = "[...document.querySelectorAll(':checked')].map(x => x.parentElement.innerText)"


def test_keys_go_through_heads_layers_and_kinds(tmp_path):
    keys = ["ArrowRight", "ArrowDown", "ArrowUp", "ArrowUp", "ArrowLeft", "ArrowLeft", "k", "k"]
    page = translation_page(translation_scores())
    states = seen(page, tmp_path, f"{PRESS} return {keys}.map(key => (press(key), {CHECKED}))")
    assert states == [
        ["cross", "1", "1"],
        ["cross", "2", "1"],
        ["cross", "1", "1"],
        ["cross", "3", "1"],  # the last before the first
        ["cross", "3", "mean"],
        ["cross", "3", "7"],
        ["encoder", "2", "5"],  # which has no third layer and no seventh head
        ["cross", "2", "5"],
    ]


def test_pointing_at_a_token_shows_where_it_looks_and_what_looks_at_it(tmp_path):
    scores = translation_scores()
    numbers = "[...document.querySelectorAll(`#${side} .weight`)].map(x => x.textContent)"
    actions = f"""{PRESS}
        const look = (side, index) => document.querySelectorAll(`#${{side}} li`)[index]
            .dispatchEvent(new PointerEvent('pointerenter'));
        const numbers = side => {numbers};
        const mean = (look('from', 1), numbers('to'));
        press('ArrowRight'); press('ArrowRight'); press('ArrowDown');
        const head = numbers('to');
        const lines = document.querySelectorAll('svg line').length;
        look('to', 2);
        return [mean, head, lines, numbers('from'), numbers('to')]"""
    mean, head, lines, looked_at, empty = seen(translation_page(scores), tmp_path, actions)
    cross = scores["cross"]
    np.testing.assert_allclose(np.array(mean, float), cross[0].mean(axis=0)[1], atol=0.006)
    np.testing.assert_allclose(np.array(head, float), cross[1][1, 1], atol=0.006)
    assert lines == np.count_nonzero(cross[1][1, 1] >= 0.005), "the lines of one token alone"
    np.testing.assert_allclose(np.array(looked_at, float), cross[1][1, :, 2], atol=0.006)
    assert empty == ["", "", ""], "only one of the two is pointed at"


def test_odd_tokens_are_shown_unchanged(tmp_path):
    page = Attention({"own": [attention(2, 4, 4)]}, {"own": UNKIND}, {"own": UNKIND}).page()
    actions = "return [...document.querySelectorAll('#from .token')].map(x => x.textContent)"
    assert seen(page, tmp_path, actions) == UNKIND
