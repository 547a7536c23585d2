"""What each setting means, for `pointcode help config`, `pointcode config get` and docs/settings.md."""

from __future__ import annotations

MEANINGS = {
    "model": 'name, path or URL of the model; "" is the best for this machine (`pointcode model list`)',
    "backend": "what decodes: auto, megakernel (a Hopper GPU), cpu or torch",
    "endpoint": "URL of an OpenAI-compatible server to use instead of the own engine, such as http://localhost:8080/v1",
    "api_key": "what that server, or clients of `pointcode serve`, must send",
    "stall_timeout_s": "seconds without any piece of a reply after which a server counts as stuck; 0 waits for ever",
    "permission_mode": "what runs without asking: ask, accept-edits, plan or auto",
    "max_turns": "model calls after which a prompt ends",
    "temperature": "0 always takes the likeliest token, 1 follows the model's odds; below 0 is the model's own choice",
    "theme": "colours: auto, dark, light, dark-contrast, light-contrast, or none (the terminal's own)",
    "keys": "of the message field: standard or vi",
    "bell": "whether the terminal's bell rings when a turn ends or asks while you look at another window",
    "small_model": "whether the model is led step by step: auto (by its size), yes or no",
    "edit_menu": "how the model changes files: tools (calls), blocks (whole texts, for small models) or auto",
    "edit_menus": "the same by model name, as a table",
    "repo_map_tokens": "how long the map of the repository is that larger models get with the first prompt; 0 is none",
    "sandbox": "which commands run confined: auto (those nobody agreed to), always or off",
    "sandbox_network": "whether commands in the sandbox reach the network",
    "permissions.allow": 'rules for what runs unasked, such as ["shell(npm test *)", "edit(docs/**)"]',
    "permissions.ask": "rules for what is asked about in any case; they go before allow",
    "permissions.deny": "rules for what never runs; they go before all others",
    "hooks": "commands that see each call before or after it runs (docs/extending.md)",
    "mcp_servers": "servers of further tools (docs/extending.md)",
}
