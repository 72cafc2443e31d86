"""The document that the clients of pydantic models ask for, as dialogue.py has it in SCHEMA."""

from pydantic import BaseModel, ConfigDict, Field


class Document(BaseModel):
    model_config = ConfigDict(extra="forbid")
    n: int = Field(ge=1, le=9)
