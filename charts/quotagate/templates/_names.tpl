{{- define "quotagate.name" -}}
{{- if contains "quotagate" .Release.Name -}}
{{- .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-quotagate" .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "quotagate.store" -}}
{{ include "quotagate.name" . }}-store
{{- end -}}

{{- define "quotagate.storeHost" -}}
{{ include "quotagate.store" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{- /* The labels that select the pods of the store. */ -}}
{{- define "quotagate.storeSelector" -}}
app.kubernetes.io/name: quotagate-store
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "quotagate.storeLabels" -}}
{{ include "quotagate.storeSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{- define "quotagate.filterNamespace" -}}
{{ .Values.filter.namespace | default .Release.Namespace }}
{{- end -}}

{{- /* The tag of all images. */ -}}
{{- define "quotagate.tag" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "quotagate.storeImage" -}}
{{- $repository := printf "%s/%s" (include "quotagate.registry" .) .Values.store.image.repository -}}
{{- if .Values.store.image.digest -}}
{{ $repository }}@{{ .Values.store.image.digest }}
{{- else -}}
{{ $repository }}:{{ include "quotagate.tag" . }}
{{- end -}}
{{- end -}}

{{- define "quotagate.filterImage" -}}
{{- $filter := .Values.filter -}}
{{- $default := ternary "quotagate-envoy" (ternary "quotagate-filter-bodies" "quotagate-filter" $filter.bodies) (eq $filter.form "native") -}}
{{- $repository := printf "%s/%s" (include "quotagate.registry" .) ($filter.image.repository | default $default) -}}
{{- if and $filter.image.sha256 (eq $filter.form "native") -}}
{{ $repository }}@sha256:{{ $filter.image.sha256 }}
{{- else -}}
{{ $repository }}:{{ include "quotagate.tag" . }}
{{- end -}}
{{- end -}}

{{- /* Whether there is something that only an EnvoyProxy can add: the module, or the cluster of the
chart's store, which speaks plain HTTP. */ -}}
{{- define "quotagate.hasEnvoyProxy" -}}
{{- $filter := .Values.filter -}}
{{- $store := .Values.store -}}
{{- if and (eq $filter.kind "EnvoyExtensionPolicy") $filter.envoyGateway.envoyProxy (or (eq $filter.form "native") (and $store.enabled (not $store.tls.enabled))) -}}
true
{{- end -}}
{{- end -}}
