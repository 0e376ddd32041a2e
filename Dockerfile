# One image for a federation's server and its nodes. Build: docker build -t fedstill .
#   server   docker run --rm -p 8000:8000 -v /srv/fl:/srv/fl fedstill flower-superlink --host 0.0.0.0 --port 8000 ...
#   node     docker run --rm -v /data/scans:/data:ro -v /var/lib/fedstill:/memory fedstill flower-supernode --superlink ...
#   one run  docker run --rm -v "$PWD:/work" fedstill fedstill run demo --out /work/runs/demo
# docs/deployment.md has the commands in full. Where there is no GPU, a CPU build of PyTorch makes the image much smaller:
# pass pip's own settings as build arguments, --build-arg PIP_EXTRA_INDEX_URL=...
ARG PYTHON=3.11
FROM python:${PYTHON}-slim AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
COPY constraints.txt /tmp/constraints.txt
COPY --from=wheel /wheels /wheels
RUN wheel="$(ls /wheels/fedstill-*.whl)" \
  && pip install --no-cache-dir -c /tmp/constraints.txt "${wheel}[flower]" \
  && rm -r /wheels /tmp/constraints.txt \
  && useradd --create-home --uid 1000 fedstill \
  && install -d -o fedstill -g fedstill /work /memory
USER 1000
WORKDIR /work
# no party is told about the others: Flower's and Ray's reporting is off
ENV FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 RAY_USAGE_STATS_ENABLED=0 \
  FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 FEDSTILL_CACHE=/home/fedstill/.cache/fedstill
CMD ["fedstill", "--help"]
