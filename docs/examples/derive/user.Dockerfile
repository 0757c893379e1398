ARG IMAGE=torch-cu130:sm120
FROM $IMAGE
RUN pip install --no-cache-dir einops
RUN useradd --create-home --uid 1000 --shell /bin/bash trainer
USER trainer
WORKDIR /home/trainer
