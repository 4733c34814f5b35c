{{- /* An Envoy beside the store that accepts proxies with a certificate, and nothing but their calls
and reports. */ -}}
{{- define "quotagate.front" -}}
# Envoy takes no secret by SDS without a node.
node: {id: store-front, cluster: store-front}
static_resources:
  listeners:
    - name: store_front
      address:
        {{- /* Where there is no IPv6, Envoy cannot listen on it. */ -}}
        {{- if or (has "IPv6" .Values.ipFamilies) (hasSuffix "DualStack" .Values.ipFamilyPolicy) }}
        socket_address: {address: "::", port_value: 9443, ipv4_compat: true}
        {{- else }}
        socket_address: {address: 0.0.0.0, port_value: 9443}
        {{- end }}
      filter_chains:
        - transport_socket:
            name: envoy.transport_sockets.tls
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
              # (!) A client that gets in can spend every quota.
              require_client_certificate: true
              common_tls_context:
                tls_certificate_sds_secret_configs:
                  - name: certificate
                    sds_config:
                      resource_api_version: V3
                      path_config_source: {path: /etc/front/certificate.yaml}
                validation_context_sds_secret_config:
                  name: authorities
                  sds_config:
                    resource_api_version: V3
                    path_config_source: {path: /etc/front/authorities.yaml}
          filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: store_front
                common_http_protocol_options: {idle_timeout: 300s}
                request_headers_timeout: 5s
                stream_idle_timeout: 90s # above the longest call
                route_config:
                  virtual_hosts:
                    - name: store
                      domains: ["*"]
                      routes:
                        - match: {path: /v1/reserve}
                          # Never retry a call: the store may have executed it.
                          route: {cluster: store, timeout: 60s}
                        # Reports of proxies; the answer brings them dials.
                        - match: {path: /v1/telemetry}
                          route: {cluster: store, timeout: 60s}
                        # Health checks of proxies.
                        - match: {path: /healthz}
                          route: {cluster: store}
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
    - name: store
      type: STATIC
      connect_timeout: 0.25s
      circuit_breakers:
        thresholds:
          - {max_connections: 256, max_pending_requests: 1024, max_requests: 1024, max_retries: 0}
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          common_http_protocol_options: {idle_timeout: 30s}
          explicit_http_config:
            http_protocol_options: {}
      load_assignment:
        cluster_name: store
        endpoints:
          - lb_endpoints:
              - endpoint:
                  address:
                    pipe: {path: /run/quotagate/store.sock}
{{- end -}}


{{- /* (!) Envoy reads the files of a certificate again only if the certificate comes by SDS. So it is
in a file of its own, and so are the authorities. */ -}}
{{- define "quotagate.frontCertificate" -}}
resources:
  - "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
    name: certificate
    tls_certificate:
      certificate_chain: {filename: /etc/envoy/tls/tls.crt}
      private_key: {filename: /etc/envoy/tls/tls.key}
      # Reads both again when Kubernetes renews the Secret.
      watched_directory: {path: /etc/envoy/tls}
{{- end -}}

{{- define "quotagate.frontAuthorities" -}}
resources:
  - "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
    name: authorities
    validation_context:
      trusted_ca: {filename: /etc/envoy/tls/ca.crt}
      watched_directory: {path: /etc/envoy/tls}
      match_typed_subject_alt_names:
        {{- range .Values.store.tls.callers }}
        - san_type: DNS
          matcher: {exact: {{ . | quote }}}
        {{- end }}
{{- end -}}
