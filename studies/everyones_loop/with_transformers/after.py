"""A sequence classifier of Hugging Face's, built from a config, learns from which page of a manual a passage is."""

import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from workbench.integrations.transformers import BoostedTrainer

HERE = Path(__file__).parent
PAGES = ("specialnames", "compound", "types", "string-methods")
N_WORDS = 12  # of a passage


def passages():
    """Return passages as numbers of words, with the page each is from; three quarters to learn from."""
    texts = [re.findall(r"\w+", topics[page].lower()) for page in PAGES]
    common = Counter(word for text in texts for word in text).most_common(999)
    numbers = {word: number for number, (word, _) in enumerate(common, start=1)}
    samples = [
        {"input_ids": torch.tensor([numbers.get(word, 0) for word in text[at : at + N_WORDS]]), "labels": page}
        for page, text in enumerate(texts)
        for at in range(0, len(text) - N_WORDS, 10)
    ]
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0)).tolist()
    border = len(samples) * 3 // 4
    return [samples[place] for place in order[:border]], [samples[place] for place in order[border:]]


def accuracy(seen):
    """Return the share of passages whose page is right."""
    return {"accuracy": float((seen.predictions.argmax(axis=1) == seen.label_ids).mean())}


def make_model():
    """Return a classifier with random weights."""
    config = BertConfig(
        vocab_size=1000, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=N_WORDS, num_labels=len(PAGES),
    )  # fmt: skip
    return BertForSequenceClassification(config)


def make_trainer(seed):
    """Return a Trainer that has not trained yet."""
    args = TrainingArguments(
        str(Path(tempfile.gettempdir()) / "passages"), num_train_epochs=6, learning_rate=1e-3, seed=seed,
        per_device_train_batch_size=16, per_device_eval_batch_size=256, metric_for_best_model="accuracy",
        use_cpu=True, save_strategy="no", report_to=[], disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    train, held_out = passages()
    return BoostedTrainer(
        args=args,
        model_init=make_model,
        train_dataset=train,
        eval_dataset=held_out,
        compute_metrics=accuracy,
        boost=HERE / "boost_config.o1.json",
    )


def train(seed):
    """Train once; return the seconds of CPU it took, and the accuracy on the passages that were kept back."""
    trainer = make_trainer(seed)
    began = time.process_time()
    trainer.train()
    return time.process_time() - began, trainer.evaluate()["eval_accuracy"]


if __name__ == "__main__":
    print(train(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
