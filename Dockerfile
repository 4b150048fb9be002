# `skipqa serve` with the pocket preset, on a CPU.
#
#   docker build -t skipqa .
#   docker run --rm -p 127.0.0.1:8000:8000 -e SKIPQA_API_KEYS=a-long-random-key skipqa
#
# CI neither builds nor runs this file; tests/test_containers.py reads it and checks what it refers
# to. compose.yaml starts it with a read-only root.

FROM python:3.12-slim AS build
# Where pip also looks for the pinned torch: `--build-arg TORCH_INDEX=…` with the address that torch's
# own page gives for CPU builds makes the image a tenth as large.
ARG TORCH_INDEX=
ARG EXTRAS=serve,fast
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/skipqa
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY skipqa skipqa
RUN /opt/skipqa/bin/pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} ".[$EXTRAS]"

FROM python:3.12-slim
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/skipqa \
    --shell /usr/sbin/nologin skipqa
COPY --from=build /opt/skipqa /opt/skipqa
# All that is written lies in SKIPQA_HOME or in /tmp. Threads that wait must sleep: several workers
# share the cores.
ENV PATH=/opt/skipqa/bin:$PATH \
    SKIPQA_HOME=/var/lib/skipqa \
    NUMBA_CACHE_DIR=/tmp/numba \
    OMP_WAIT_POLICY=PASSIVE \
    PIP_NO_CACHE_DIR=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001
# The models and the default indexes, 1.1 GB. With SETUP=0 the image has none, and
# `docker run … skipqa setup` puts them into the volume.
ARG SETUP=1
RUN if [ "$SETUP" = 1 ]; then skipqa setup; fi
VOLUME /var/lib/skipqa
EXPOSE 8000
STOPSIGNAL SIGTERM
# No proxy of the environment may answer in the server's place, so http.client and not urllib.
HEALTHCHECK --interval=15s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import http.client, sys; c = http.client.HTTPConnection('127.0.0.1', 8000, timeout=4); c.request('GET', '/health'); sys.exit(c.getresponse().status != 200)"]
CMD ["skipqa", "serve", "--host", "0.0.0.0"]
