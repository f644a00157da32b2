"""What a run keeps of its settings, and reads again."""

import json

import pytest

from keras_transformer.decoding import BeamSearch, Sampling, TokenRules
from keras_transformer.serving import SamplingSettings, SearchSettings
from keras_transformer.serving.settings import (
    SCORINGS,
    SEARCH,
    kept_sampling,
    kept_search,
    read_sampling,
    read_search,
    scoring_of,
)

RULES = TokenRules(2, min_length=3, bad_words_ids=[[5, 6]])


@pytest.mark.parametrize("name", SCORINGS)
def test_what_a_run_keeps_of_a_search_is_read_again(name):
    search = BeamSearch(3, 3, scoring_of(name, 0.3), RULES)
    kept = json.loads(json.dumps(kept_search(SearchSettings(search, 20, 30))))
    assert kept["scoring"] == name and tuple(kept) == SEARCH
    assert read_search(kept) == SearchSettings(search, 20, 30)
    kept["max_target_length"] = None
    changed = read_search(kept, 6, 0.0, {"min_length": 4})
    rules = TokenRules(2, min_length=4, bad_words_ids=[[5, 6]])
    assert changed == SearchSettings(BeamSearch(6, 6, scoring_of(name, 0.0), rules), 20, 20)


def test_what_a_run_keeps_of_sampling_is_read_again():
    assert kept_sampling(SamplingSettings(32)) == "{}"
    assert read_sampling("", 32) == read_sampling(None, 32) == SamplingSettings(32, 16)
    sampling = Sampling(0.5, 7, 0.9, RULES)
    for settings in (
        SamplingSettings(32, 9, sampling, start_id=4),
        SamplingSettings(32, sampling=Sampling(0.8, end_ids=(8, 9))),
    ):
        assert read_sampling(kept_sampling(settings), 32) == settings
    changed = read_sampling(kept_sampling(SamplingSettings(32, 9, sampling)), 32, {"min_length": 0})
    assert changed.sampling.token_rules == TokenRules(2, bad_words_ids=[[5, 6]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", r"sampling must be a JSON object\. Received: '\[1\]'"),
        ('{"top": 1}', r"sampling must be among max_tokens, .*token_rules\. Received: \['top'\]"),
        ('{"top_k": 0}', "top_k must be an integer of at least 1"),
        ('{"token_rules": 3}', r"token_rules must be a JSON object\. Received: 3"),
        ('{"token_rules": {"a": 1}}', r"token_rules must be among .*Received: \['a'\]"),
        ('{"min_p": 1}', "sampling must be among"),
    ],
)
def test_wrong_settings_of_a_run_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        read_sampling(text, 32)
