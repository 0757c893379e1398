"""A service that says which torch answers."""

import soundfile
import torch
from fastapi import FastAPI

app = FastAPI()


@app.get("/")
def about() -> dict[str, str]:
    """The versions that a deployment asks for first."""
    return {"torch": torch.__version__, "libsndfile": soundfile.__libsndfile_version__}
