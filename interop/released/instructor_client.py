"""instructor, in the modes that ask an OpenAI server for a document."""

import instructor
from openai import OpenAI
from pydantic import BaseModel

from check import ASK, BASE, MODEL, check, run, want


class Report(BaseModel):
    city: str
    degrees: int
    tags: list[str]


def ask(mode):
    client = instructor.from_openai(OpenAI(base_url=BASE + "/v1", api_key="none"), mode=mode)
    report = client.create(model=MODEL, response_model=Report, messages=[{"role": "user", "content": ASK}], max_retries=0)
    want(isinstance(report, Report) and report.city, report)


@check
def tools():
    ask(instructor.Mode.TOOLS)


@check
def json_schema():
    ask(instructor.Mode.JSON_SCHEMA)


@check
def responses_tools():
    ask(instructor.Mode.RESPONSES_TOOLS)


run()
