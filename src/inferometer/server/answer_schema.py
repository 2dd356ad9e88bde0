"""The form of what is sent back, for the OpenAPI document: answers are written as plain data, and tests hold them against this."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class AnswerSchema(BaseModel):
    """A JSON object with these fields and no others. A field with a default may be missing."""

    model_config = ConfigDict(extra="forbid")
