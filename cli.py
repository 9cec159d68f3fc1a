"""The console script `domino`, also `python -m domino`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def _models(args):
    """Target, drafter and tokenizer of the options --target, --drafter and --dtype."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from .embedded.smollm2 import DRAFTER, target_folder
    from .modeling_domino import DominoModel

    if (args.target is None) != (args.drafter is None):
        raise ValueError("--target and --drafter go together: a drafter serves the one target it was trained for.")
    target, drafter = args.target or target_folder(), args.drafter or DRAFTER
    dtype, device = getattr(torch, args.dtype), "cuda" if torch.cuda.is_available() else "cpu"
    return (
        AutoModelForCausalLM.from_pretrained(target, dtype=dtype).to(device).eval(),
        DominoModel.from_pretrained(drafter, dtype=dtype).to(device).eval(),
        AutoTokenizer.from_pretrained(target),
    )


def _demo(args) -> None:
    from .evaluation.demo import QUESTION, demo

    target, draft, tokenizer = _models(args)
    demo(target, draft, tokenizer, args.question or QUESTION, args.max_new_tokens)


def _measure(args) -> None:
    from .evaluation.measure import measure

    counts = {"gsm8k": args.gsm8k, "humaneval": args.humaneval, "mt_bench": args.mt_bench}
    target, draft, tokenizer = _models(args)
    measure(
        target,
        draft,
        tokenizer,
        {task: n for task, n in counts.items() if n},
        args.out,
        max_new_tokens=args.max_new_tokens,
        do_sample=False,
    )


def _export(args) -> None:
    from .hub.export import export, push

    folder = export(args.drafter, args.out, args.card, args.push or args.name)
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


def _parser() -> argparse.ArgumentParser:
    from .embedded.smollm2 import DRAFTER

    formatter = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(
        prog="domino", description="Lossless speculative decoding for Hugging Face models."
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    models = argparse.ArgumentParser(add_help=False)
    models.add_argument("--target", help="folder or Hub id of the target (default: the embedded SmolLM2)")
    models.add_argument("--drafter", help="folder or Hub id of its drafter (default: the embedded one)")
    models.add_argument("--dtype", choices=["bfloat16", "float32", "float16"], default="bfloat16")
    models.add_argument("--max-new-tokens", type=int, default=128)

    add = commands.add_parser(
        "demo", parents=[models], help="one question, streamed and timed", formatter_class=formatter
    )
    add.add_argument("--question", help="what to ask (default: a school problem)")
    add.set_defaults(run=_demo)

    add = commands.add_parser(
        "measure", parents=[models], help="τ, speedup and losslessness on prompts", formatter_class=formatter
    )
    for task, count in (("gsm8k", 30), ("humaneval", 20), ("mt-bench", 0)):
        add.add_argument(f"--{task}", type=int, default=count, metavar="N", help=f"first N packaged prompts of {task}")
    add.add_argument("--out", type=Path, help="JSON file for the samples and their provenance")
    add.set_defaults(run=_measure)

    add = commands.add_parser("export", help="write a Hub repository folder, and push it", formatter_class=formatter)
    add.add_argument("out", type=Path, help="folder to write; must be empty or absent")
    add.add_argument("--drafter", default=DRAFTER, help="folder or Hub id of the drafter")
    add.add_argument("--card", type=Path, default=DRAFTER / "card.yaml", help="YAML with the model card's facts")
    add.add_argument("--name", default="org/domino-smollm2-135m-instruct", help="repository name in the card's example")
    add.add_argument("--push", metavar="ORG/NAME", help="also upload to this repository")
    add.add_argument("--private", action="store_true", help="create the repository private")
    add.add_argument("--revision", help="branch to push to; made if absent")
    add.add_argument("--message", default="Upload Domino drafter", help="commit message")
    add.set_defaults(run=_export)

    add = commands.add_parser(
        "validate", help="check a drafter folder against both engines' contracts", formatter_class=formatter
    )
    add.add_argument("folder", type=Path)
    add.set_defaults(run=_validate)

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
    except (ValueError, OSError) as error:
        sys.exit(f"domino: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
