"""The `andrea` command: one subcommand per stage of the DAG, and a few for people.

Each function imports what it needs, so that `andrea show` does not wait for the engine. A user's mistake ends
here as a short message and exit code 1; a stopped training run ends with 75 and can be resumed.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from andrea import __version__
from andrea.errors import AndreaError
from andrea.experiment import Experiment, load
from andrea.files import refusal
from andrea.modelcommands import Add, add_commands, whole_number
from andrea.terminal import open_streams, tell

Command = Callable[[argparse.Namespace], int]

_EPILOG = """\
Call it in the project's folder. Snakemake calls the stages in their order, so that most days need only:
  .venv/bin/snakemake --cores all train_tiny
for people:  runs, dashboard, show, chat, sample, eval, export, firehose, fresh, doctor
stages:      pull, tokenizer, tokens, train, archive, report (the megachat stage is scripts/prep-megachat.py)
`andrea COMMAND --help` has an example of each.
"""


def find_experiment(name: str) -> Path:
    """A path as it is; a bare name (`ANDREA-TINY`, `tiny`) as experiments/ANDREA-TINY-TRAIN.json."""
    from andrea.paths import experiment_file, full_name

    path = Path(name)
    return path if path.suffix == ".json" else Path(experiment_file(full_name(name)))


def _experiment(args: argparse.Namespace) -> Experiment:
    return load(find_experiment(args.experiment))


def _runs(args: argparse.Namespace) -> int:  # noqa: ARG001
    from andrea.runs import table

    print(table(Path()))
    return 0


def _show(args: argparse.Namespace) -> int:
    from andrea.show import show

    tell(show(_experiment(args)))
    return 0


def _pull(args: argparse.Namespace) -> int:
    from andrea.sources.pull import pull

    pull(args.dataset, args.out, lock=args.lock, offline=args.offline, files=args.files)
    return 0


def _tokenizer(args: argparse.Namespace) -> int:
    from andrea.tokenizer.stage import build

    experiment = _experiment(args)
    build(experiment, Path("data") / experiment.name / "megachat", args.out)
    return 0


def _tokens(args: argparse.Namespace) -> int:
    from andrea.tokens import encode_corpus

    experiment = _experiment(args)
    data = Path("data") / experiment.name
    encode_corpus(experiment, data / "megachat", data / "tokenizer" / "tokenizer.json", args.out, args.threads)
    return 0


def _train(args: argparse.Namespace) -> int:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a wish for a checkpoint must not kill who does not listen yet
    from andrea.consent import ask
    from andrea.proxy import train

    path = find_experiment(args.experiment)
    ask([load(path)], Path())
    return train(path, root=Path(), stop_after=args.stop_after, threads=args.threads, checkpoint=args.checkpoint)


def _archive(args: argparse.Namespace) -> int:
    from andrea.archive import archive

    archive(_experiment(args), Path())
    return 0


def _report(args: argparse.Namespace) -> int:
    from andrea.report import build

    build(_experiment(args), Path())
    return 0


def _firehose(args: argparse.Namespace) -> int:
    from andrea.audit import arms_table, open_audit, step_view

    audited = open_audit(args.target, find_experiment(args.target), Path())
    tell(arms_table(audited) if args.step is None else step_view(audited, args.step, args.characters))
    return 0


def _dashboard(args: argparse.Namespace) -> int:
    from andrea.dashboard.server import serve
    from andrea.dashboard.watch import Watch, find_run

    folder, name = find_run(args.target, find_experiment(args.target), Path())
    serve(Watch(folder, name), args.host, args.port)
    return 0


def _fresh(args: argparse.Namespace) -> int:
    from andrea.fresh import fresh

    fresh(_experiment(args).name, Path())
    return 0


def _doctor(args: argparse.Namespace) -> int:  # noqa: ARG001
    from andrea.doctor import doctor

    return doctor()


def _port(text: str) -> int:
    number = 0 if text == "auto" else int(text) if text.isdecimal() else -1
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"must be auto or a number from 0 to 65535, got {text}")
    return number


def _add_for_people(add: Add) -> None:
    """What people type; chat, sample, eval and export are in andrea.modelcommands."""
    add("runs", _runs, "list every run: state, step, loss, held-out bits per byte, age, size", experiment=False)
    add("show", _show, "print the experiment, its parameters, memory by part and an estimate of time")
    command = add(
        "firehose",
        _firehose,
        "print each source's share and why, or what one step has read",
        experiment=False,
        example="tiny --step 100",
    )
    command.add_argument("target", help="an experiment, a run folder, or the .state.json of a checkpoint")
    command.add_argument("--step", type=int, metavar="N", help="show the documents that step N read, decoded")
    command.add_argument(
        "--characters", type=whole_number, metavar="N", default=400, help="how much of each row --step shows (400)"
    )
    command = add("dashboard", _dashboard, "show a run in the browser, live", experiment=False, example="tiny")
    command.add_argument("target", metavar="RUN", help="an experiment, whose run need not have begun, or a run folder")
    command.add_argument("--port", type=_port, default=0, help="0 or auto: the next free one from 8765 on (auto)")
    command.add_argument("--host", default="127.0.0.1", help="address to listen on; beyond loopback anyone may read")
    add("fresh", _fresh, "put run and model aside, so that the next call trains anew")
    add("doctor", _doctor, "say what the CUDA engine finds on this machine, and what it misses", experiment=False)


def _add_stages(add: Add) -> None:
    """What Snakemake calls, in the order of the DAG."""
    command = add(
        "pull",
        _pull,
        "fetch one dataset into shards",
        experiment=False,
        example="chitchat --out data/raw/chitchat/0.9.0",
    )
    command.add_argument("dataset", help="a dataset of andrea/sources/sources.yaml, or the name of your own")
    command.add_argument("--out", type=Path, required=True, help="folder for the shards and their manifest")
    command.add_argument(
        "--lock",
        type=Path,
        default=Path("workflow/sources.lock.json"),
        help="which file of a hub dataset was pulled, with its hash",
    )
    command.add_argument("--offline", action="store_true", help="use only what is already on this disk")
    command.add_argument("--files", type=Path, help="folder of your own .jsonl and .txt files")
    command = add("tokenizer", _tokenizer, "learn the tokenizer from the megachat", example="tiny --out /tmp/tokenizer")
    command.add_argument("--out", type=Path, required=True, help="folder for tokenizer.json and report.json")
    command = add("tokens", _tokens, "encode the megachat into .btok token files", example="tiny --out /tmp/tokens")
    command.add_argument("--out", type=Path, required=True, help="folder for the token files and their manifest")
    command.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="processes to encode with")
    command = add("train", _train, "train, or go on from the last checkpoint", example="tiny --stop-after 1000")
    command.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="changes the speed, not the bits")
    command.add_argument("--stop-after", type=int, metavar="STEP", help="stop with a checkpoint after this step")
    command.add_argument("--checkpoint", type=Path, metavar="FILE", help="go on from this checkpoint, not the last")
    add("archive", _archive, "copy the run's archives, with model and hashes, to results/")
    add("report", _report, "write results/<EXP>/report.html")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="andrea",
        description="Grow a small chat language model, exactly.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"andrea {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(
        name: str, run: Command, text: str, *, experiment: bool = True, example: str = ""
    ) -> argparse.ArgumentParser:
        words = example or ("tiny" if experiment else "")
        command = commands.add_parser(
            name,
            help=text,
            description=text,
            epilog=f"example:  .venv/bin/andrea {name} {words}".rstrip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(run=run)
        if experiment:
            command.add_argument("experiment", help="a file in experiments/, or its name: tiny, ANDREA-12M")
        return command

    _add_for_people(add)
    add_commands(add)
    _add_stages(add)
    return parser


def run_safely(work: Callable[[], int]) -> int:
    """Run `work`; a user's mistake becomes a short message and exit code 1."""
    open_streams()
    try:
        code = work()
        sys.stdout.flush()
        return code
    except AndreaError as mistake:
        return _refuse(mistake)
    except KeyboardInterrupt:
        print("stopped by Ctrl-C", file=sys.stderr)
        return 130
    except BrokenPipeError:  # andrea firehose tiny | head: the reader has gone, and the rest would fail at exit
        _drop_output()
        return 1
    except OSError as cause:  # a name too long, no right to read, output on a full disk
        refused = refusal(f"{cause.filename or 'standard output, or a file,'} must be usable", cause)
        if refused is None:
            raise
        if cause.filename is None:
            _drop_output()
        return _refuse(refused)


def _refuse(mistake: AndreaError) -> int:
    print(f"error: {mistake}", file=sys.stderr)
    return 1


def _drop_output() -> None:
    """What is still to be written would fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    return run_safely(lambda: args.run(args))
