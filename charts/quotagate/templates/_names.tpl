{{- define "quotagate.name" -}}
{{- if contains "quotagate" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-quotagate" .Release.Name | trunc 50 | trimSuffix "-" -}}
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
{{ include "quotagate.registry" . }}/{{ $filter.image.repository | default $default }}:{{ include "quotagate.tag" . }}
{{- end -}}
