{{- /* The checks come first, whichever template Helm renders first. */ -}}
{{- define "quotagate.registry" -}}
{{- include "quotagate.checks" . -}}
{{- $registry := required "image.registry is empty: nothing is published yet, so push the images of dist/release to your registry and name it, as in `--set image.registry=registry.example.com/quotagate`" .Values.image.registry -}}
{{- if or (contains "://" $registry) (ne $registry (lower $registry)) -}}
{{- fail (printf "image.registry is %s: write its host and path alone, in small letters, as in `registry.example.com/quotagate`" $registry) -}}
{{- end -}}
{{- trimSuffix "/" $registry -}}
{{- end -}}

{{- /* Everything that must fit together. The schema checks single values. */ -}}
{{- define "quotagate.checks" -}}
{{- $values := .Values -}}
{{- $store := $values.store -}}
{{- $filter := $values.filter -}}
{{- $document := dig "store" dict ($values.policy | default dict) -}}
{{- $name := include "quotagate.name" . -}}
{{- if or (gt (len $name) 48) (not (regexMatch "^[a-z][a-z0-9-]*$" $name)) -}}
{{- fail (printf "the names of all objects would begin with %s: a Service may have only small letters, digits and -, begins with a letter, and needs room for an ending after 48. Give the release another name, or set fullnameOverride" $name) -}}
{{- end -}}
{{- $ofPods := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/version" -}}
{{- $ofObjects := concat $ofPods (list "app.kubernetes.io/managed-by" "helm.sh/chart") -}}
{{- range $path, $labels := dict "store.podLabels" (list $store.podLabels $ofPods) "monitoring.serviceMonitor.labels" (list $values.monitoring.serviceMonitor.labels $ofObjects) "monitoring.rules.labels" (list $values.monitoring.rules.labels $ofObjects) -}}
{{- range $label := keys (first $labels) | sortAlpha -}}
{{- if has $label (last $labels) -}}
{{- fail (printf "%s: the chart sets %s. Remove it" $path $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $ofMesh := dict "sidecar" "sidecar.istio.io/inject" "ambient" "istio.io/dataplane-mode" -}}
{{- $label := get $ofMesh $values.istio.dataplane -}}
{{- if and $values.istio.enabled $label (hasKey $store.podLabels $label) -}}
{{- fail (printf "store.podLabels: istio.dataplane sets %s. Remove it, and choose istio.dataplane" $label) -}}
{{- end -}}
{{- $counts := ternary "the stores" "the rate limit service" $store.enabled -}}
{{- if or $store.enabled $values.rateLimit.enabled -}}
{{- if not $store.redis.existingSecret -}}
{{- fail (printf "store.redis.existingSecret is empty, and %s would have no Redis: create a Secret with the address of Redis, and name it: `kubectl -n %s create secret generic %s --from-literal=%s=redis-cluster://redis-1:6379,redis-2:6379`" $counts .Release.Namespace (include "quotagate.store" .) $store.redis.urlKey) -}}
{{- end -}}
{{- with $store.redis.tls -}}
{{- if and .existingSecret .caKey -}}
{{- $secret := lookup "v1" "Secret" $.Release.Namespace .existingSecret -}}
{{- if and $secret (not (hasKey (dig "data" dict $secret) .caKey)) -}}
{{- fail (printf "store.redis.tls.caKey: the Secret %s has no key %s. Add the authorities to it, or set caKey to an empty text to trust those of the image" .existingSecret .caKey) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $store.networkPolicy.enabled (not $store.networkPolicy.callers) -}}
{{- fail (printf "store.networkPolicy.callers is empty: nobody could call %s. Name the proxies, as in `[{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: istio-ingress}}}]`" $counts) -}}
{{- end -}}
{{- if and $store.networkPolicy.enabled $values.monitoring.serviceMonitor.enabled (not $store.networkPolicy.admin) -}}
{{- fail (printf "store.networkPolicy.admin is empty: Prometheus could not scrape %s. Name it, as in `[{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]`" $counts) -}}
{{- end -}}
{{- if and $values.istio.enabled $values.monitoring.serviceMonitor.enabled (eq $values.istio.dataplane "ambient") (eq $values.istio.metrics "merged") -}}
{{- fail "istio.metrics is merged, which needs a sidecar. In an ambient mesh set istio.metrics to permissive, or to strict if Prometheus is in the mesh" -}}
{{- end -}}
{{- else if and (eq $filter.kind "none") (not $values.monitoring.rules.enabled) (not $values.quotaPolicies.enabled) -}}
{{- fail "store.enabled and rateLimit.enabled are false, and filter.kind is none: there is nothing to install" -}}
{{- end -}}
{{- if $store.enabled -}}
{{- if $store.tls.enabled -}}
{{- if not $store.tls.existingSecret -}}
{{- fail "store.tls.existingSecret is empty: name a Secret with tls.crt, tls.key and ca.crt" -}}
{{- end -}}
{{- if not $store.tls.callers -}}
{{- fail "store.tls.callers is empty: name the DNS names in the certificates of your proxies" -}}
{{- end -}}
{{- if $values.istio.enabled -}}
{{- fail "store.tls.enabled and istio.enabled exclude each other: the mesh has mutual TLS already. Switch one of them off" -}}
{{- end -}}
{{- if and (ne $filter.kind "none") (not (or $document.cluster $document.redis)) -}}
{{- fail "store.tls.enabled: the chart knows no cluster that speaks TLS. Add one to your proxies (envoy/quota_store_tls.yaml shows it) and name it in policy.store.cluster" -}}
{{- end -}}
{{- end -}}
{{- if and $store.trafficDistribution (not $values.istio.enabled) -}}
{{- fail "store.trafficDistribution has no effect without istio.enabled: proxies outside of a mesh call every store of the headless Service. Remove it" -}}
{{- end -}}
{{- if and $store.autoscaling.enabled (gt (int $store.autoscaling.minReplicas) (int $store.autoscaling.maxReplicas)) -}}
{{- fail "store.autoscaling.minReplicas is above maxReplicas" -}}
{{- end -}}
{{- end -}}
{{- if ne $filter.kind "none" -}}
{{- if not $values.policy -}}
{{- fail "policy is empty: the filter needs a policy document (docs/reference/policy-guide.md). Write it below `policy:` in your values" -}}
{{- end -}}
{{- if and (not $store.enabled) (not (or $document.cluster $document.redis)) -}}
{{- fail "store.enabled is false: name the cluster of your store in policy.store.cluster, or for the native module your Redis in policy.store.redis" -}}
{{- end -}}
{{- if and $store.enabled $store.callToken.existingSecret (not $document.token) (not $document.redis) -}}
{{- fail "store.callToken.existingSecret is set, but policy.store.token is empty: the store would refuse every call. Write the token of that Secret into policy.store.token" -}}
{{- end -}}
{{- include "quotagate.policyChecks" . -}}
{{- if and $filter.check (not $store.enabled) -}}
{{- fail "filter.check runs the image of the store: set store.enabled, or run `helm template ... | quotagate check -` before you install" -}}
{{- end -}}
{{- if and $filter.selector $filter.targetRefs -}}
{{- fail "filter.selector and filter.targetRefs exclude each other: use selector for sidecars and Istio's own gateways, targetRefs for waypoints and the Gateway API" -}}
{{- end -}}
{{- $kinds := list -}}
{{- range $filter.targetRefs -}}{{- $kinds = append $kinds .kind -}}{{- end -}}
{{- if and $filter.waypoint (not (or (has "Service" $kinds) (has "ServiceEntry" $kinds))) -}}
{{- fail "filter.waypoint is the waypoint of Services or ServiceEntries, and filter.targetRefs names none: name them there. Or remove filter.waypoint, and name the waypoint itself in filter.targetRefs, with kind Gateway" -}}
{{- end -}}
{{- if eq $filter.kind "EnvoyExtensionPolicy" -}}
{{- if not $filter.targetRefs -}}
{{- fail "filter.targetRefs is empty: name your Gateway, as in `[{group: gateway.networking.k8s.io, kind: Gateway, name: eg}]`" -}}
{{- end -}}
{{- else -}}
{{- range $filter.targetRefs -}}
{{- if not (has .kind (list "Gateway" "GatewayClass" "Service" "ServiceEntry")) -}}
{{- fail (printf "filter.targetRefs names kind %s, to which Istio attaches no plugin: name a Gateway, GatewayClass, Service or ServiceEntry" .kind) -}}
{{- end -}}
{{- if and (has .kind (list "Service" "ServiceEntry")) $store.enabled $values.istio.enabled (not $filter.waypoint) -}}
{{- fail (printf "filter.waypoint is empty, but filter.targetRefs names kind %s: name its waypoint, which gets the cluster of the store by an EnvoyFilter" .kind) -}}
{{- end -}}
{{- end -}}
{{- if $filter.failOpen -}}
{{- fail "filter.failOpen is a value for Envoy Gateway: at Istio set filter.failStrategy to FAIL_OPEN" -}}
{{- end -}}
{{- if not (or $filter.selector $filter.targetRefs) -}}
{{- fail "filter.selector and filter.targetRefs are empty: every proxy of the namespace would count. Name the gateway, as in `selector: {istio: ingress}`" -}}
{{- end -}}
{{- if eq $filter.form "native" -}}
{{- fail "filter.form is native: Istio loads no modules. Use form wasm, or kind EnvoyExtensionPolicy" -}}
{{- end -}}
{{- if and $filter.tuning.ownCluster (or (not $store.enabled) $store.tls.enabled $values.istio.enabled) -}}
{{- fail "filter.tuning.ownCluster calls the store of this chart by plain HTTP, which store.tls refuses, and so does the AuthorizationPolicy of istio.enabled. Set it to false: istiod sends its own cluster to gateways and sidecars, and the chart's EnvoyFilter brings it to waypoints (docs/operate/kubernetes.md)" -}}
{{- end -}}
{{- end -}}
{{- if and (eq $filter.form "native") (not $document.redis) -}}
{{- fail "filter.form is native: the module counts in Redis by itself. Name it in policy.store.redis" -}}
{{- end -}}
{{- if and (eq $filter.form "wasm") $document.redis -}}
{{- fail "policy.store.redis is for filter.form native: the Wasm filter reaches Redis through the store. Remove it" -}}
{{- end -}}
{{- end -}}
{{- with $values.controller -}}
{{- if .enabled -}}
{{- if not $values.quotaPolicies.enabled -}}
{{- fail "controller.enabled needs the resource QuotaPolicy: set quotaPolicies.enabled" -}}
{{- end -}}
{{- if not .domains -}}
{{- fail "controller.domains is empty: name your domain and its Gateways, as in `[{domain: shop, gateways: [gateways/public], store: {cluster: quota_store}}]`" -}}
{{- end -}}
{{- if not .token.existingSecret -}}
{{- fail "controller.token.existingSecret is empty: name a Secret with a token of the role publish (`quotagate token new controller --role publish`), whose line is in the admin tokens of the store" -}}
{{- end -}}
{{- if not (or $store.enabled .admin) -}}
{{- fail "store.enabled is false: name the admin address of your store in controller.admin" -}}
{{- end -}}
{{- if not (or .admin $store.adminToken.existingSecret) -}}
{{- fail "store.adminToken.existingSecret is empty, and without it the store takes no documents: name a Secret with the line of the controller's token (`quotagate token new controller --role publish`)" -}}
{{- end -}}
{{- if and $values.policy (ne $filter.kind "none") -}}
{{- if not $values.policy.live -}}
{{- fail "policy.live is not true: the filter would never take up what the controller publishes" -}}
{{- end -}}
{{- $domains := list -}}
{{- range .domains -}}{{- $domains = append $domains .domain -}}{{- end -}}
{{- if not (has $values.policy.domain $domains) -}}
{{- fail (printf "controller.domains does not have %s, the domain of policy: the filter would never take up what the controller publishes" $values.policy.domain) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $values.jwt.issuer (not $values.jwt.jwksUri) -}}
{{- fail "jwt.jwksUri is empty: name the address of the issuer's keys" -}}
{{- end -}}
{{- end -}}
