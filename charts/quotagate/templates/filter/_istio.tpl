{{- /* The proxies. */ -}}
{{- define "quotagate.targets" -}}
{{- if .Values.filter.targetRefs -}}
targetRefs:
  {{- toYaml .Values.filter.targetRefs | nindent 2 }}
{{- else -}}
# For waypoints and gateways of the Gateway API, use targetRefs instead.
selector:
  matchLabels:
    {{- toYaml .Values.filter.selector | nindent 4 }}
{{- end }}
{{- end -}}

{{- /* The proxies, for an EnvoyFilter, which applies to no Service: the waypoint takes its place. */ -}}
{{- define "quotagate.envoyFilterTargets" -}}
{{- $targets := .Values.filter.targetRefs -}}
{{- with .Values.filter.waypoint -}}
{{- $waypoint := dict "group" "gateway.networking.k8s.io" "kind" "Gateway" "name" . -}}
{{- $others := list -}}
{{- range $targets -}}
{{- if not (has .kind (list "Service" "ServiceEntry")) -}}{{- $others = append $others . -}}{{- end -}}
{{- end -}}
{{- $targets = prepend $others $waypoint | uniq -}}
{{- end -}}
{{- if $targets -}}
targetRefs:
  {{- toYaml $targets | nindent 2 }}
{{- else -}}
workloadSelector:
  labels:
    {{- toYaml .Values.filter.selector | nindent 4 }}
{{- end }}
{{- end -}}

{{- define "quotagate.phase" -}}
# (!) AUTHZ runs after Istio has verified tokens (RequestAuthentication), so claims are there, and
# before AuthorizationPolicies, so requests that those refuse count too. STATS runs after them, so
# they do not. AUTHN runs before tokens are verified: no request would have claims. Within one
# phase a higher priority runs first.
phase: {{ .Values.filter.phase }}
priority: {{ .Values.filter.priority }}
{{- with .Values.filter.match }}
match:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* What WasmPlugin and TrafficExtension have in common. */ -}}
{{- define "quotagate.istioWasm" -}}
{{- $filter := .Values.filter -}}
url: {{ printf "oci://%s" (include "quotagate.filterImage" .) | quote }}
{{- with $filter.image.sha256 }}
# The proxy refuses an image with another manifest.
sha256: {{ . | quote }}
{{- end }}
{{- if ne .Values.image.pullPolicy "Never" }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}
{{- with $filter.image.pullSecret }}
# In this namespace.
imagePullSecret: {{ . }}
{{- end }}
# (!) If the filter crashes, the next request starts it again. (Istio 1.27 or newer; before, use
# FAIL_CLOSE.) If the image cannot be fetched, the proxy answers 403 to all requests, or with
# FAIL_OPEN lets all pass uncounted.
failStrategy: {{ $filter.failStrategy }}
# The policy document, as in envoy.yaml. (!) Three things are Istio's own:
# store.cluster is the cluster that Istio makes for the store's Service, with mTLS and its
#   DestinationRule. A proxy without it cannot reach the store. The chart's EnvoyFilter brings it to
#   waypoints. A Sidecar resource and PILOT_FILTER_GATEWAY_CLUSTER_CONFIG may leave it out
#   (docs/operate/kubernetes.md).
# jwt.payload: since 1.21 Istio stores verified claims under `payload`. Before, under the
#   issuer: {payload: "https://issuer.example.com"}
# client_ip is the address that the gateway trusts. Set numTrustedProxies
#   (meshConfig.defaultConfig.gatewayTopology) to the number of load balancers that append to
#   X-Forwarded-For, and externalTrafficPolicy: Local on its Service.
pluginConfig:
  {{- include "quotagate.policy" . | nindent 2 }}
{{- end -}}
