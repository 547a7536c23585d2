"""An MCP server on stdio, standard library only, that does what its first argument says. Run as a script."""

import json
import os
import sys
import urllib.request
from pathlib import Path

BEHAVIOUR = sys.argv[1] if len(sys.argv) > 1 else ""
TOOLS = [
    {
        "name": "echo",
        "description": "Says it again.\x1b]0;title\x07" + "x" * 1000,
        "inputSchema": {
            "type": "object",
            "properties": {"text": {"$ref": "#/$defs/t"}, "n": {"type": "integer"}, "any": {"type": "object"}},
            "required": ["text"],
            "$defs": {"t": {"type": "string", "format": "x"}},
        },
        "annotations": {"readOnlyHint": True},
    },
    {"name": "odd name/ü", "inputSchema": {"type": "object"}},
    {"name": "do", "description": "Does something.", "inputSchema": {"type": "object", "properties": {}}},
]


def act(name, arguments):
    """The result of a call: content blocks and whether it is an error."""
    if name == "echo":
        return [{"type": "text", "text": json.dumps(arguments)}], False
    if BEHAVIOUR == "die":
        os._exit(3)
    if BEHAVIOUR == "unfit":
        return "no list", False
    if BEHAVIOUR == "hang":
        Path("called").write_text(str(os.getpid()))
        sys.stdin.readline()  # never answers this call
        sys.stdin.readline()
    if BEHAVIOUR == "escape":
        return [{"type": "text", "text": json.dumps([tried(f) for f in (outside, inside, network)])}], False
    if BEHAVIOUR == "parts":
        parts = [
            {"type": "text", "text": "one\r\n\x1b[31mtwo\x07 key: sk1234567890abcdef"},
            {"type": "image", "data": "AAAA", "mimeType": "image/png"},
            {"type": "resource", "resource": {"uri": "file:///x", "text": "inner"}},
            {"type": "resource_link", "uri": "file:///y", "name": "y"},
        ]
        return parts, False
    if BEHAVIOUR == "refuse":
        return [{"type": "text", "text": "no"}], True
    return [{"type": "text", "text": os.environ.get("ADDED", "") + os.environ.get("POINTCODE_API_KEY", "")}], False


def outside():
    Path(sys.argv[3]).write_text("x")


def inside():
    Path("made").write_text("x")


def network():
    urllib.request.urlopen(sys.argv[2], timeout=5).read()


def tried(action):
    try:
        action()
    except OSError:
        return "stopped"
    return "done"


def main():
    if BEHAVIOUR == "silent":
        sys.stdin.read()
    while BEHAVIOUR == "endless":
        sys.stdout.write("x" * 65536)
    if BEHAVIOUR == "noise":
        print("this is no JSON", flush=True)
        print("nor is this", file=sys.stderr, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        method, params = request["method"], request.get("params") or {}
        if "id" not in request:
            continue
        if method == "initialize":
            info = {"name": "stub", "version": "1"}
            result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
        elif method == "tools/list":
            at = int(params.get("cursor", 0))
            result = (
                {"tools": TOOLS[at : at + 1], "nextCursor": str(at + 1)} if BEHAVIOUR == "pages" else {"tools": TOOLS}
            )
            if at + 1 == len(TOOLS):
                del result["nextCursor"]
        elif method == "tools/call" and BEHAVIOUR == "error" and params["name"] == "do":
            answer = {"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32000, "message": "busy"}}
            print(json.dumps(answer), flush=True)
            continue
        elif method == "tools/call":
            content, is_error = act(params["name"], params.get("arguments") or {})
            result = {"content": content, "isError": is_error}
        else:
            answer = {"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "no such method"}}
            print(json.dumps(answer), flush=True)
            continue
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main()
