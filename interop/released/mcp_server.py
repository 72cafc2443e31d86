"""A server of the Model Context Protocol on its standard input and output, of one tool
that takes nothing. Each call of it is a line in the file named by the first argument, and
its result is the second argument."""

import json
import sys

TOOL = {
    "name": "ring",
    "description": "Rings the bell.",
    "inputSchema": {"type": "object", "properties": {}},
    "annotations": {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False},  # so that nobody is asked
}


def answer(method, params):
    if method == "initialize":
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "bell", "version": "1"}}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        with open(sys.argv[1], "a", encoding="utf-8") as calls:
            print(json.dumps(params["name"]), file=calls)
        return {"content": [{"type": "text", "text": sys.argv[2]}], "isError": False}
    return {}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:  # a notification has none
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": answer(request["method"], request.get("params", {}))}), flush=True)
