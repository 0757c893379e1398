# What a tuned Dockerfile has: the same pinned wheels by uv in one step, from a cache that is mounted.
# Layers are packed by zstd, which the builder is told. The context `uv` has the program itself.
FROM base
RUN --mount=type=bind,from=wheels,target=/run/wheels \
    --mount=type=bind,from=uv,target=/run/uv \
    --mount=type=cache,target=/root/.cache/uv \
    --mount=type=secret,id=ca \
    --mount=type=secret,id=index \
    if [ -s /run/secrets/ca ]; then export SSL_CERT_FILE=/run/secrets/ca; fi && \
    if [ -s /run/secrets/index ]; then UV_DEFAULT_INDEX=$(cat /run/secrets/index); export UV_DEFAULT_INDEX; fi && \
    python3 -m venv --without-pip /opt/venv && \
    /run/uv/bin/uv pip install --no-progress --python /opt/venv/bin/python --link-mode copy \
        --compile-bytecode --no-deps --require-hashes --requirements /run/wheels/requirements.txt
ENV PATH=/opt/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin
