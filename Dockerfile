# The gateway alone: no vLLM, no torch. `docker run kvgate --endpoint http://vllm:8000`

FROM python:3.11-slim-bookworm AS build
WORKDIR /src
# For the admission core, which is compiled here; what is shipped has no compiler.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
# pip stays here, the newest, which takes a third of the time: the environment that is shipped has none.
RUN python -m venv --upgrade-deps /opt/build && python -m venv --without-pip /opt/kvgate
# What kvgate needs changes less often than kvgate: a layer of its own.
COPY requirements/build.txt requirements/image.txt ./
RUN /opt/build/bin/pip install --no-deps --require-hashes --requirement build.txt \
    && /opt/build/bin/pip --python /opt/kvgate/bin/python install --no-deps --require-hashes --requirement image.txt
COPY pyproject.toml README.md LICENSE setup.py ./
COPY gateway ./gateway
COPY engine ./engine
RUN KVGATE_COMPILE=1 /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir dist . \
    && /opt/build/bin/pip --python /opt/kvgate/bin/python install --no-deps dist/*.whl

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="kvgate" \
      org.opencontainers.image.description="Admission control for vLLM" \
      org.opencontainers.image.licenses="Apache-2.0"
# A number, so that an orchestrator can see that it is not root.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin kvgate \
    && install --directory --owner 10001 --group 10001 /var/cache/huggingface /var/lib/kvgate
COPY --from=build /opt/kvgate /opt/kvgate
COPY deploy/healthcheck.py /opt/kvgate/healthcheck.py
# KVGATE_CACHE: where `kvgate reload` finds the kvgate that runs; nothing else is kept there.
ENV PATH=/opt/kvgate/bin:$PATH \
    HF_HOME=/var/cache/huggingface \
    STATE_DIRECTORY=/var/lib/kvgate \
    KVGATE_CACHE=/tmp/kvgate \
    PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-I", "-S", "/opt/kvgate/healthcheck.py"]
ENTRYPOINT ["kvgate", "serve"]
