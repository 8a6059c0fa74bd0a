"""From the options of a command to a model in its engine, with the one line that says what runs."""

import argparse
import sys

from andrea.engine import Choice, Inference, open_inference
from andrea.engine.checks import check_choice
from andrea.talk.model import Model, open_model
from andrea.talk.reply import Settings


def settings_of(args: argparse.Namespace) -> Settings:
    """How replies are drawn; EngineError when a number means nothing."""
    choice = Choice(args.temperature, args.top_k, args.top_p)
    check_choice(choice, args.tokens)
    return Settings(choice, args.tokens, args.seed)


def open_speaker(args: argparse.Namespace) -> tuple[Model, Inference]:
    """The model of args.model in the engine that args.engine names."""
    model = open_model(args.model)
    engine = open_inference(model.shape, args.engine, model.precision, args.threads)
    engine.take(model.weights)
    print(f"{model.name}, step {model.step:,}; {engine.describe()}", file=sys.stderr, flush=True)
    return model, engine
