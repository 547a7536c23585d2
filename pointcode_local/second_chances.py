"""What the model is told when its reply could not be used."""

from __future__ import annotations

NOTES = {
    "empty": "[note] Your reply was empty. Answer the user, or call a tool.",
    "thinking": "[note] You thought without answering. Stop thinking now: answer the user, or call a tool.",
    "cut": (
        "[note] Your tool call was cut short and was not run. Make it again, shorter: split large content over several "
        "calls."
    ),
    "doubtful": (
        "[note] Your reply shows a tool call among other text; it was not run. To run it, make the call itself and "
        "write nothing after it. If it was meant as an explanation, give your final answer."
    ),
    "broken": "[note] The connection broke off here. Go on from where you stopped.",
}
CUT_CALL = (
    "Error: this call was cut short at the token limit and was not run. Make it again, shorter: split large content "
    "over several calls."
)
STUCK_CALL = (
    "Error: what this call holds only repeated itself and was stopped; it was not run. Make it again without the "
    "repetitions; data of one kind is made by a shell command."
)
STUCK = "stopped: the model only repeated itself; ask in other words, or use a larger model"
