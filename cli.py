"""The console script `domino`, also `python -m domino`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path

from .installing import missing

TARGET = "folder or Hub id of the target, or smollm2, the embedded one (default)"


def _demo(args) -> None:
    from .evaluation.demo import QUESTION, demo
    from .evaluation.run import load_models
    from .evaluation.settings import ModelSettings

    pair = ModelSettings(args.target, args.drafter)
    pair.require_drafter()
    demo(load_models(pair, args.dtype), args.question or QUESTION, args.max_new_tokens)


def _eval(args) -> None:
    from .evaluation.options import settings
    from .evaluation.report.table import markdown
    from .evaluation.run import evaluate
    from .evaluation.summary import cells

    print(markdown(cells(evaluate(settings(args)).rows)))


def _report(args) -> None:
    from .evaluation.report.write import write

    for file in write(args.folder):
        print(f"Wrote {file}")


def _bench(args) -> None:
    from .evaluation.bench.options import settings
    from .evaluation.bench.projection import markdown
    from .evaluation.bench.run import bench

    print(markdown(bench(settings(args))))


def _train(args) -> None:
    from .training.config import load
    from .training.train import train

    overrides = [*(args.set or [])]
    for name in ("target", "data", "out"):
        if (value := getattr(args, name)) is not None:
            overrides.append(f"{'output_dir' if name == 'out' else name}={value}")
    folder = train(load(args.config, overrides), args.resume)
    if int(os.environ.get("RANK", 0)) == 0:
        print(f"Wrote {folder}")


def _ablate(args) -> None:
    from .evaluation.tasks import parse
    from .training.ablate import ablate, read_rows

    overrides = [f"{name}={value}" for name in ("target", "data") if (value := getattr(args, name)) is not None]
    args.out.mkdir(parents=True, exist_ok=True)
    rows = read_rows(args.plan, args.out, overrides)
    print(ablate(rows, parse(args.tasks), args.out, args.max_new_tokens))


def _export(args) -> None:
    from .embedded.smollm2 import DRAFTER
    from .hub.export import CARD_FACTS, export, push

    if args.drafter and not args.card:
        raise ValueError(f"--card is missing: a YAML file with {', '.join(CARD_FACTS)} of {args.drafter}.")
    folder = export(args.drafter or DRAFTER, args.out, args.card or DRAFTER / "card.yaml", args.push or args.name)
    print(f"Wrote {folder}")
    if args.push:
        print(f"Pushed: {push(folder, args.push, args.private, args.revision, args.message)}")


def _validate(args) -> None:
    from .hub.validate import validate

    problems = validate(args.folder)
    if problems:
        raise ValueError("\n".join([f"{args.folder}: {len(problems)} problem(s)", *problems]))
    print(f"{args.folder}: a complete drafter for transformers and for SGLang 0.5.23's loader")


def _smollm2(args) -> None:
    from .embedded.smollm2 import target_folder

    print(target_folder())


def _doctor(args) -> None:
    from .doctor.report import doctor

    sys.exit(0 if doctor(args.device, args.json) else 1)


def _space(args) -> None:
    from .evaluation.settings import ModelSettings

    ModelSettings(args.target, args.drafter).require_drafter()
    if args.deploy:
        from .space.deploy import deploy

        print(f"Pushed: {deploy(args.deploy, args.target, args.drafter, args.private, args.message)}")
        return
    if importlib.util.find_spec("gradio") is None:
        raise ValueError(missing("The Space needs Gradio", "space"))
    from .space.app import serve

    serve(args.target, args.drafter, args.dtype, args.port, args.browser)


def _distill(args) -> None:
    from .training.distill import distill
    from .training.distill_settings import DistillSettings

    distill(DistillSettings(**{name: value for name, value in vars(args).items() if name != "run"}))


def _parser() -> argparse.ArgumentParser:
    from .training.distill_settings import ABOUT, add_options

    formatter = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(
        prog="domino", description="Lossless speculative decoding for Hugging Face models."
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    add = commands.add_parser("demo", help="one question, streamed and timed", formatter_class=formatter)
    add.add_argument("--target", help=TARGET)
    add.add_argument("--drafter", help="folder or Hub id of its drafter (default: the embedded one)")
    add.add_argument("--dtype", choices=["bfloat16", "float32", "float16"], default="bfloat16")
    add.add_argument("--max-new-tokens", type=int, default=128)
    add.add_argument("--question", help="what to ask (default: a school problem)")
    add.set_defaults(run=_demo)

    from .evaluation import options

    add = commands.add_parser("eval", help="τ, speed and losslessness of methods on tasks", description=options.ABOUT)
    options.add_options(add)
    add.set_defaults(run=_eval)

    add = commands.add_parser("report", help="tables, plots and a page from an evaluation", formatter_class=formatter)
    add.add_argument("folder", type=Path, help="what `domino eval --out` wrote")
    add.set_defaults(run=_report)

    from .evaluation.bench import options as bench_options

    add = commands.add_parser("bench", help="latency without weights, projected", description=bench_options.ABOUT)
    bench_options.add_options(add)
    add.set_defaults(run=_bench)

    add = commands.add_parser("train", help="train a drafter on distilled answers", formatter_class=formatter)
    add.add_argument("config", type=Path, help="YAML; see training/config.py for every key")
    add.add_argument("--target", help="instead of the config's: Hub id, folder or smollm2")
    add.add_argument("--data", help="instead of the config's: folder of `domino distill`")
    add.add_argument("--out", help="instead of the config's output_dir")
    add.add_argument(
        "--set", action="append", metavar="KEY=VALUE", help="override, e.g. objective.weights=auf; repeatable"
    )
    add.add_argument(
        "--resume", action="store_true", help="continue from the newest complete checkpoint, if there is one"
    )
    add.set_defaults(run=_train)

    add = commands.add_parser(
        "ablate", help="train the rows of an ablation and measure them side by side", formatter_class=formatter
    )
    add.add_argument("plan", type=Path, help="YAML such as training/configs/ablations.yaml")
    add.add_argument(
        "--out", type=Path, required=True, help="folder for the runs and ablation.json; goes on where it stopped"
    )
    add.add_argument("--target", help="instead of the config's: Hub id, folder or smollm2")
    add.add_argument("--data", help="instead of the config's")
    add.add_argument("--tasks", default="gsm8k=10,humaneval=10,mt_bench=10", metavar="TASK=N,…", help="as in eval")
    add.add_argument("--max-new-tokens", type=int, default=128)
    add.set_defaults(run=_ablate)

    add = commands.add_parser(
        "distill", help="let a target answer prompts: training data for a drafter", description=ABOUT
    )
    add_options(add)
    add.set_defaults(run=_distill)

    add = commands.add_parser("export", help="write a Hub repository folder, and push it", formatter_class=formatter)
    add.add_argument("out", type=Path, help="folder to write; must be empty or absent")
    add.add_argument("--drafter", help="folder or Hub id of the drafter (default: the embedded one)")
    add.add_argument("--card", type=Path, help="YAML with the model card's facts (default: the embedded drafter's)")
    add.add_argument("--name", default="org/domino-smollm2-135m-instruct", help="repository name in the card's example")
    add.add_argument("--push", metavar="ORG/NAME", help="also upload to this repository")
    add.add_argument("--private", action="store_true", help="create the repository private")
    add.add_argument("--revision", help="branch to push to; made if absent")
    add.add_argument("--message", default="Upload Domino drafter", help="commit message")
    add.set_defaults(run=_export)

    add = commands.add_parser(
        "validate", help="check that transformers and SGLang can load a drafter folder", formatter_class=formatter
    )
    add.add_argument("folder", type=Path)
    add.set_defaults(run=_validate)

    add = commands.add_parser(
        "space", help="both ways of decoding side by side in a browser", formatter_class=formatter
    )
    add.add_argument("--target", help=TARGET)
    add.add_argument("--drafter", help="folder or Hub id of its drafter (default: the embedded one)")
    add.add_argument("--dtype", choices=["bfloat16", "float32", "float16"], help="default: bfloat16")
    add.add_argument("--port", type=int, help="default: the first free one from 7860 on")
    add.add_argument("--browser", action="store_true", help="open the page in a browser")
    add.add_argument("--deploy", metavar="ORG/NAME", help="do not serve: upload everything to this Hub Space")
    add.add_argument("--private", action="store_true", help="create that Space private")
    add.add_argument("--message", default="Deploy the Domino Space", help="commit message")
    add.set_defaults(run=_space)

    add = commands.add_parser(
        "doctor", help="what works on this device: versions, kernels, graphs, one round, what to set"
    )
    add.add_argument("--device", help="such as cpu or cuda:1 (default: the first GPU, else the CPU)")
    add.add_argument("--json", action="store_true", help="print everything as JSON, for a bug report")
    add.set_defaults(run=_doctor)

    add = commands.add_parser(
        "smollm2", help="unpack the embedded target and print its folder", formatter_class=formatter
    )
    add.set_defaults(run=_smollm2)
    return parser


def main() -> None:
    """Run a command; an expected error is one message on stderr and exit status 1."""
    args = _parser().parse_args()
    try:
        args.run(args)
    except (ValueError, OSError, FloatingPointError) as error:
        sys.exit(f"domino: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
