{{- define "kvgate.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end -}}
{{- end }}

{{- define "kvgate.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kvgate.labels" -}}
{{ include "kvgate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "kvgate.inTier" -}}
{{- if or .Values.tier.redis .Values.tier.redisSecret.name }}yes{{ end -}}
{{- end }}

{{- /* kvgate's settings: `config`, under what the chart decides. */ -}}
{{- define "kvgate.config" -}}
{{- $models := list }}
{{- range $number, $model := .Values.models }}
  {{- $own := omit $model "pods" }}
  {{- with $model.pods }}
    {{- $url := printf "http://%s-engines-%d.%s.svc.%s:%v" (include "kvgate.name" $) $number $.Release.Namespace $.Values.clusterDomain .port }}
    {{- $own = set (deepCopy $own) "discover" (append (default list $model.discover) (dict "dns" $url)) }}
  {{- end }}
  {{- $models = append $models $own }}
{{- end }}
{{- $decided := dict "server" (dict "port" 8080 "admin_port" 9090) "models" $models }}
{{- with .Values.adminKey }}{{ if .secret }}
  {{- $_ := set $decided "auth" (dict "admin_key_file" (printf "/run/secrets/%s/%s" .secret .key)) }}
{{- end }}{{ end }}
{{- if include "kvgate.inTier" . }}
  {{- $key := .Values.tier.key }}
  {{- $tier := dict "key_file" (printf "/run/secrets/%s/%s" $key.secret $key.key) "members" .Values.replicas }}
  {{- with .Values.tier.redis }}{{ $_ := set $tier "redis" . }}{{ end }}
  {{- $_ := set $decided "tier" $tier }}
{{- end }}
{{- toYaml (mergeOverwrite (deepCopy .Values.config) $decided) }}
{{- end }}

{{- /* What would go wrong only later. */ -}}
{{- define "kvgate.checks" -}}
{{- range .Values.models }}
  {{- if .engine }}{{ fail "models[].engine: Kubernetes starts engines: make it `sidecar`, or a Deployment of its own" }}{{ end }}
{{- end }}
{{- if hasKey .Values.config "models" }}{{ fail "config.models: give it as `models`, beside `config`" }}{{ end }}
{{- range list "host" "port" "admin_port" }}
  {{- if hasKey (dig "server" dict $.Values.config) . }}{{ fail (printf "config.server.%s: the chart sets it" .) }}{{ end }}
{{- end }}
{{- $several := gt (int .Values.replicas) 1 }}
{{- if and $several (not .Values.sidecar) (not (include "kvgate.inTier" .)) }}
  {{- fail "replicas: several kvgates before the same engines must decide as one, or they fill them twice: set tier.redis and tier.key" }}
{{- end }}
{{- if and .Values.sidecar (include "kvgate.inTier" .) }}
  {{- fail "tier: kvgates with an engine of their own (sidecar) share none, and so decide alone: leave tier out" }}
{{- end }}
{{- if include "kvgate.inTier" . }}
  {{- if not (has .Values.tier.key.secret .Values.secrets) }}{{ fail "tier.key.secret: name a Secret that `secrets` lists" }}{{ end }}
{{- end }}
{{- if and .Values.adminKey.secret (not (has .Values.adminKey.secret .Values.secrets)) }}
  {{- fail "adminKey.secret: name a Secret that `secrets` lists" }}
{{- end }}
{{- with .Values.autoscaling }}{{ if .kind }}
  {{- if and (not .target.name) (not $.Values.sidecar) }}{{ fail "autoscaling.target.name: name the Deployment of the engines" }}{{ end }}
  {{- if and (eq .kind "keda") (not .prometheus) }}{{ fail "autoscaling.prometheus: KEDA needs the URL of a Prometheus" }}{{ end }}
{{- end }}{{ end }}
{{- end }}
