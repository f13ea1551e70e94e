{{/* The name of what the chart makes: the release's, with the chart's unless it is in it. */}}
{{- define "ringproxy.name" -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) | trunc 53 | trimSuffix "-" -}}
{{- end -}}

{{- define "ringproxy.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "ringproxy.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* The settings of a sidecar as TOML. JSON's strings, lists and booleans are TOML's; Helm has whole numbers as floats. */}}
{{- define "ringproxy.toml" -}}
{{- range $name, $value := . }}
{{ $name }} = {{ if and (kindIs "float64" $value) (eq $value (floor $value)) }}{{ printf "%.0f" $value }}{{ else }}{{ toJson $value }}{{ end }}
{{- end }}
{{- end -}}

{{/* Refuse settings with which no process could start. The argument has `where`, `settings`, `secrets`, `existing`. */}}
{{- define "ringproxy.check" -}}
{{- $where := .where -}}
{{- range $name, $example := dict "broker_url" "amqp://USER@HOST:5672/VHOST" "management_url" "[http://USER@HOST:15672]" -}}
  {{- $urls := index $.settings $name | required (printf "%ssettings.%s: is needed, as in %s" $where $name $example) -}}
  {{- range ternary (list $urls) $urls (kindIs "string" $urls) | default list | compact -}}
    {{- if regexMatch "://[^/@]*:[^/@]*@" . -}}
      {{- fail (printf "%ssettings.%s: has a password, and a ConfigMap is no place for one; leave it out, as in %s, and put it into %ssecrets" $where $name $example $where) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if not .existing -}}
  {{- range $name, $file := .settings -}}
    {{- if and (hasSuffix "_file" $name) (hasPrefix "/etc/ringproxy/secrets/" $file) -}}
      {{- if not (hasKey $.secrets (base $file)) -}}
        {{- fail (printf "%ssecrets: has no %s, which %ssettings.%s names; add it, or name a Secret that has it in %sexistingSecret" $where (base $file) $where $name $where) -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}
