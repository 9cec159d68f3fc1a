"""Prompts to start with, by task, and the one that is in the box when the page opens."""

from __future__ import annotations

EXAMPLES = {
    "Math · bolts": (
        "A robe takes 2 bolts of blue fiber and half that much white fiber. How many bolts in total does it take?\n"
        "Please reason step by step, and put your final answer within \\boxed{}."
    ),
    "Math · ducks": (
        "Janet's ducks lay 16 eggs per day. She eats three for breakfast every morning and bakes muffins for her friends every day "
        "with four. She sells the remainder at the farmers' market daily for $2 per fresh duck egg. How much in dollars does she "
        "make every day at the farmers' market?\nPlease reason step by step, and put your final answer within \\boxed{}."
    ),
    "Code · palindrome": "Write a Python function that checks whether a word is a palindrome.",
    "Code · matrix": "Write a function to sort a given matrix in ascending order according to the sum of its rows.",
    "Edit · grammar": (
        "Correct the mistakes in this text: The cat have eaten the fish that was lying on the table in the kitchen. The dog have seen "
        "it from the garden and have told nobody."
    ),
    "Chat · travel": "Compose an engaging travel blog post about a recent trip to Hawaii.",
    "Chat · language": "Give three tips for learning a new language.",
}
FIRST = EXAMPLES["Code · palindrome"]  # short, and right
