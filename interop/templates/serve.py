"""Answers render requests, one JSON object a line, for the Go interop test.

{"source": ..., "vars": {...}} renders a template with variables;
{"source": ..., "request": {...}} renders a conversation.
"""

import json
import sys

import reference

for line in sys.stdin:
    job = json.loads(line)
    if "request" in job:
        result = reference.outcome(lambda: reference.chat(job["source"], job["request"]))
    else:
        result = reference.outcome(lambda: reference.ENV.from_string(job["source"]).render(**job["vars"]))
    print(json.dumps(result), flush=True)
