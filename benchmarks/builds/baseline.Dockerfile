# What most people write: a base, a virtual environment, pip. The context `wheels` has pip itself,
# which the base lacks, and the same pinned wheels as a requirements file.
FROM base
RUN --mount=type=bind,from=wheels,target=/run/wheels \
    --mount=type=secret,id=ca \
    --mount=type=secret,id=index \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi && \
    if [ -s /run/secrets/index ]; then PIP_INDEX_URL=$(cat /run/secrets/index); export PIP_INDEX_URL; fi && \
    python3 -m venv --without-pip /opt/venv && \
    /opt/venv/bin/python /run/wheels/pip.whl/pip install --no-cache-dir --disable-pip-version-check \
        --quiet --require-hashes --no-deps --requirement /run/wheels/requirements.txt
ENV PATH=/opt/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin
