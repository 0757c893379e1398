ARG IMAGE=torch-cu130:sm120
FROM $IMAGE
WORKDIR /project
COPY pyproject.toml .
RUN cat /usr/share/torch-images/uv-project.toml >>pyproject.toml
RUN pip install --no-cache-dir uv && uv venv --clear --system-site-packages && uv sync --no-cache
RUN .venv/bin/python -m pip check
ENV PATH="/project/.venv/bin:$PATH" VIRTUAL_ENV=/project/.venv
