# syntax=docker/dockerfile:1.7
# Four images: `docker build --target store .` (the store and the commands), `--target envoy` (Envoy
# with both forms of the filter), and the Wasm filter alone, for Istio's WasmPlugin and Envoy
# Gateway's EnvoyExtensionPolicy: `--target filter`, or `--target filter-bodies` for policies that
# read bodies.

FROM rust:1.95.0-bookworm AS build
RUN rustup target add wasm32-wasip1
# The Rust of this image, whatever rust-toolchain.toml names.
ENV RUSTUP_TOOLCHAIN=1.95.0
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo xtask build \
 && mkdir /dist \
 && cp dist/quotagate.wasm dist/quotagate-bodies.wasm dist/libquotagate.so dist/quotagate /dist/

FROM debian:12.10-slim AS store
# For Redis over TLS (rediss://).
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /dist/quotagate /usr/local/bin/quotagate
COPY --chmod=0755 docker/http-ok.sh /usr/local/bin/http-ok
ENV QUOTAGATE_LISTEN=0.0.0.0:9180 QUOTAGATE_ADMIN=0.0.0.0:9181
EXPOSE 9180 9181
USER 65532:65532
HEALTHCHECK --interval=2s --timeout=2s --start-period=10s --retries=15 CMD ["http-ok", "9181", "/healthz"]
ENTRYPOINT ["quotagate"]
CMD ["serve"]

# Istio and Envoy Gateway expect one layer with one file of this name.
FROM scratch AS filter
COPY --from=build /dist/quotagate.wasm /plugin.wasm

FROM scratch AS filter-bodies
COPY --from=build /dist/quotagate-bodies.wasm /plugin.wasm

FROM envoyproxy/envoy:v1.40.0 AS envoy
# Configurations name dist/quotagate.wasm or dist/quotagate-bodies.wasm relative to the working
# directory.
WORKDIR /
COPY --from=build /dist/quotagate.wasm /dist/quotagate.wasm
COPY --from=build /dist/quotagate-bodies.wasm /dist/quotagate-bodies.wasm
COPY --from=build /dist/libquotagate.so /usr/local/lib/quotagate/libquotagate.so
ENV ENVOY_DYNAMIC_MODULES_SEARCH_PATH=/usr/local/lib/quotagate
COPY --chmod=0755 docker/http-ok.sh /usr/local/bin/http-ok
COPY docker/envoy.yaml /etc/envoy/envoy.yaml
EXPOSE 10000
USER envoy
HEALTHCHECK --interval=2s --timeout=2s --start-period=10s --retries=15 CMD ["http-ok", "9901", "/ready"]
ENTRYPOINT ["envoy"]
CMD ["--config-path", "/etc/envoy/envoy.yaml"]
