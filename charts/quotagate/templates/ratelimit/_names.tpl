{{- define "quotagate.rateLimit" -}}
{{ include "quotagate.name" . }}-ratelimit
{{- end -}}

{{- /* The labels that select the pods of the rate limit service. */ -}}
{{- define "quotagate.rateLimitSelector" -}}
app.kubernetes.io/name: quotagate-ratelimit
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "quotagate.rateLimitLabels" -}}
{{ include "quotagate.rateLimitSelector" . }}
{{ include "quotagate.commonLabels" . }}
{{- end -}}

{{- define "quotagate.rateLimitImage" -}}
{{- $image := .Values.rateLimit.image -}}
{{- $repository := printf "%s/%s" (include "quotagate.registry" .) $image.repository -}}
{{- if $image.digest -}}
{{ $repository }}@{{ $image.digest }}
{{- else -}}
{{ $repository }}:{{ include "quotagate.tag" . }}
{{- end -}}
{{- end -}}

{{- /* What must fit together. */ -}}
{{- define "quotagate.rateLimitChecks" -}}
{{- $rateLimit := .Values.rateLimit -}}
{{- if $rateLimit.enabled -}}
{{- if and $rateLimit.rules $rateLimit.existingConfigMap -}}
{{- fail "rateLimit.rules and rateLimit.existingConfigMap exclude each other: remove one of them" -}}
{{- end -}}
{{- $names := list -}}
{{- range $rateLimit.extraEnv -}}{{- $names = append $names .name -}}{{- end -}}
{{- if not (or $rateLimit.rules $rateLimit.existingConfigMap (has "CONFIG_TYPE" $names)) -}}
{{- fail "rateLimit.rules is empty: every request would pass. Write rule files there, as in `rules: {shop.yaml: {domain: shop, descriptors: [...]}}`, or name a ConfigMap with them in rateLimit.existingConfigMap" -}}
{{- end -}}
{{- end -}}
{{- end -}}
