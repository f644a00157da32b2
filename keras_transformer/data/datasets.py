"""Reads texts from data sets of TensorFlow Datasets."""

from collections.abc import Iterator


def builder_of(name, split: str, data_dir=None):
    """The prepared builder of a data set of TensorFlow Datasets; a builder is returned as it is.

    Raises ImportError if TensorFlow Datasets is not installed, ValueError for an unknown name or
    split.
    """
    builder = _prepared_builder(name, data_dir) if isinstance(name, str) else name
    if split.partition("[")[0] not in builder.info.splits:
        raise ValueError(
            f"Expected one of the splits {sorted(builder.info.splits)}. "
            f"Received: split={split!r} of {builder.info.full_name}."
        )
    return builder


def _prepared_builder(name, data_dir):
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ImportError(
            "Reading a data set by name needs TensorFlow Datasets: pip install tensorflow-datasets."
        ) from error
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError:  # its message lists hundreds of names
        raise ValueError(
            "Expected the name of a data set of TensorFlow Datasets, e.g. "
            f"ted_hrlr_translate/pt_to_en. Received: {name!r}."
        ) from None
    builder.download_and_prepare()
    return builder


def text_features(builder) -> list[str]:
    """The names of the features of a data set that are text."""
    return [name for name, feature in builder.info.features.items() if feature.dtype == "string"]


def languages_of(builder, source: str | None, target: str | None) -> tuple[str, str]:
    """The features to read, of those that hold text."""
    texts = text_features(builder)
    keys = builder.info.supervised_keys or (texts if len(texts) == 2 else None)
    if keys is None and None in (source, target):
        raise ValueError(
            f"{builder.info.full_name} does not say which language is the source. "
            f"Choose source and target among {texts}. Received: {source!r} and {target!r}."
        )
    if len(texts) == 2 and (source in texts) != (target in texts):  # the other one is clear
        other = {texts[0]: texts[1], texts[1]: texts[0]}
        pair = source or other[target], target or other[source]
    else:
        pair = source or keys[0], target or keys[1]
    if pair[0] == pair[1] or not set(pair) <= set(texts):
        raise ValueError(
            f"Source and target must be two of {texts}, the languages of "
            f"{builder.info.full_name}. Received: {pair[0]!r} and {pair[1]!r}."
        )
    return pair


def pairs_of_dataset(builder, split, source, target) -> Iterator[tuple[str, str]]:
    """Yields the texts of two features of a data set."""
    for batch in builder.as_dataset(split=split).batch(1024).as_numpy_iterator():
        for pair in zip(batch[source], batch[target], strict=True):
            yield tuple(sentence.decode() for sentence in pair)


def texts_of_dataset(builder, split) -> Iterator[bytes]:
    """Yields the texts of a data set, which must have exactly one feature that is text."""
    texts = text_features(builder)
    if len(texts) != 1:
        raise ValueError(
            f"{builder.info.full_name} must have one feature that is text. Received: {texts}."
        )
    for example in builder.as_dataset(split=split).as_numpy_iterator():
        yield example[texts[0]]


def labelled_rows_of_dataset(builder, split) -> Iterator[tuple[str, tuple[str]]]:
    """Yields the texts of a data set and their class labels."""
    features, texts = builder.info.features, text_features(builder)
    classes = [key for key, feature in features.items() if hasattr(feature, "int2str")]
    texts = ["text"] if "text" in texts else texts
    if len(classes) != 1 or len(texts) != 1:
        raise ValueError(
            f"{builder.info.full_name} must have one text and one class label. "
            f"Received: texts {texts}, labels {classes}."
        )
    (text,), (label,) = texts, classes
    rows = builder.as_dataset(split=split).as_numpy_iterator()
    for number, row in enumerate(rows, start=1):
        if row[label] < 0:  # as in a test set whose answers are not published
            raise ValueError(
                f"The texts of {builder.info.full_name} must have labels. "
                f"Received: split={split!r}, whose text {number:,} has none."
            )
        yield row[text].decode(), (features[label].int2str(int(row[label])),)
