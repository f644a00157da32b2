"""The settings of a JSON file, each checked as it is read."""

import logging
import math
import numbers

from keras_transformer.convert.tables import ConversionError
from keras_transformer.files import read_json

MAX_JSON_BYTES = 2**28  # ten times the largest tokenizer.json that we know
# Settings of Hugging Face's models, of any family, that change none of their numbers; those of the
# search are in generation.py.
HARMLESS = frozenset(
    "_attn_implementation _attn_implementation_autoset _name_or_path _num_labels architectures "
    "attn_implementation chunk_size_feed_forward cls_token_id dtype finetuning_task "
    "gradient_checkpointing id2label initializer_factor initializer_range init_std label2id "
    "mask_token_id model_type name_or_path num_labels output_attentions output_hidden_states "
    "output_past problem_type return_dict sep_token_id task_specific_params tf_legacy_loss "
    "torch_dtype torchscript transformers_version unk_token_id use_bfloat16 use_return_dict".split()
)


def json_object(path):
    """The content of a JSON file, a dictionary.

    Raises:
        ConversionError: if it is not JSON, too large, or nested too deeply.
    """
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ValueError(f"more than {MAX_JSON_BYTES} bytes")
        content = read_json(path)
        if not isinstance(content, dict):
            raise ValueError(f"{content!r:.80}")
    except (ValueError, OSError) as error:
        raise ConversionError(f"{path} must hold a JSON object. Received: {error}") from None
    return content


class Settings:
    """What config.json says of a model, or a part of what it says.

    Null counts as a setting that is missing, except for `one_of`, and a missing one has its
    default, if it has one.

    Args:
        values: the content, a dictionary.
        file: path of the file, for messages.

    Examples:
        >>> Settings({"layers": "3"}, "bert/config.json").count("layers")
        Traceback (most recent call last):
        ...
        keras_transformer.convert.tables.ConversionError: bert/config.json: layers must be a whole \
number, at least 1. Received: '3'.
    """

    def __init__(self, values, file):
        if not isinstance(values, dict):
            raise ConversionError(f"{file} must hold a JSON object. Received: {values!r:.80}.")
        self.values, self.file = values, file
        self._known, self._usual = set(), {}

    def without_effect(self, names):
        """Takes settings as known which change nothing that we compute."""
        self._known.update(names)

    def usual(self, **values):
        """Takes settings as known as long as they have these values."""
        self._usual.update(values)

    def warn_of_unread(self):
        """Logs one warning that names the settings that nobody has read; null is no setting."""
        unread = [
            name
            for name, value in self.values.items()
            if value is not None
            and name not in self._known
            and not (name in self._usual and self._usual[name] == value)
        ]
        if unread:
            logging.getLogger(__name__).warning(
                "%s has settings that are not supported and have no effect here: %s.",
                self.file, ", ".join(f"{name}={self.values[name]!r:.80}" for name in unread),
            )  # fmt: skip

    def given(self, name):
        """A setting as it is, unchecked; None if it is missing."""
        self._known.add(name)
        return self.values.get(name)

    def has(self, name):
        return self.values.get(name) is not None

    def one_of(self, name, *allowed):
        """A setting of which only some values are supported; a missing one has the first."""
        value = self.given(name)
        value = value if name in self.values else allowed[0]
        # 1 == True in Python, but not here.
        if not any(value == one and type(value) is type(one) for one in allowed):
            supported = " or ".join(map(repr, allowed))
            self._refuse(name, f"{supported}; nothing else is supported", value)
        return value

    def count(self, name, default=None, least=1):
        """A whole number; one without a default must be there."""
        value = self._given(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self._refuse(name, f"a whole number, at least {least}", value)
        return value

    def number(self, name, default, below=math.inf):
        """A number, at least 0 and below a limit."""
        value = self._given(name, default)
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not is_number or not 0 <= value < below:
            limit = "" if below == math.inf else f" and below {below}"
            self._refuse(name, f"a number, at least 0{limit}", value)
        return value

    def share(self, name, default):
        """A probability of dropping something, in [0, 1)."""
        return self.number(name, default, below=1)

    def flag(self, name, default):
        value = self._given(name, default)
        if not isinstance(value, bool):
            self._refuse(name, "true or false", value)
        return value

    def text(self, name, default=None):
        value = self._given(name, default)
        if not isinstance(value, str):
            self._refuse(name, "a text", value)
        return value

    def items(self, name):
        """The values of a list or of an object, none if it is missing."""
        value = self.given(name)
        if value is not None and not isinstance(value, (list, dict)):
            self._refuse(name, "a list or a JSON object", value)
        return list(value.values() if isinstance(value, dict) else value or [])

    def part(self, name):
        """The settings of an object inside of this one."""
        if not isinstance(self._given(name, None), dict):
            self._refuse(name, "a JSON object", self.values[name])
        return Settings(self.values[name], self.file)

    def heads_of(self, hidden, heads):
        """The width of a model and its number of heads, which must divide it.

        Args:
            hidden: name of the setting of the width.
            heads: name of that of the heads.
        """
        width, count = self.count(hidden), self.count(heads)
        if width % count:
            self._refuse(heads, f"a divisor of {hidden}, {width}", count)
        return {"hidden_dim": width, "num_heads": count}

    def _given(self, name, default):
        value = self.given(name)
        if value is None and default is not None:
            return default
        if name not in self.values:
            raise ConversionError(f"{self.file} must have {name!r}.")
        return value

    def _refuse(self, name, allowed, value):
        raise ConversionError(f"{self.file}: {name} must be {allowed}. Received: {value!r:.80}.")


def pieces_of(file, count, rows):
    """How many pieces a vocabulary lacks for the rows of its table, which may be padded.

    Args:
        file: of the vocabulary, or its folder, for messages.
        count: pieces of the vocabulary.
        rows: of the table.

    Raises:
        ConversionError: if the table has no row for some of the pieces.
    """
    if count > rows:
        raise ConversionError(
            f"{file}: the vocabulary must have at most {rows} pieces, one for each row of the "
            f"table of embeddings. Received: {count} pieces."
        )
    return rows - count
