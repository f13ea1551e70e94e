{{/*
For the charts of applications: the sidecar's label, its init container, which comes first, and its volumes, as items of
lists. The argument is `.Subcharts.ringproxy` of a chart that has this one as a dependency.
*/}}
{{- define "ringproxy.sidecar.labels" -}}
{{- toYaml (.Files.Get "files/sidecar.yaml" | fromYaml).spec.template.metadata.labels -}}
{{- end -}}

{{- define "ringproxy.sidecar.container" -}}
{{- $container := first (.Files.Get "files/sidecar.yaml" | fromYaml).spec.template.spec.initContainers -}}
{{- $variables := dict -}}
{{- range $container.env }}{{ $_ := set $variables .name .value }}{{ end -}}
{{- if .Values.ipv6 }}{{ $_ := set $variables "RINGPROXY_ADMIN_LISTEN" "[::]:15681" }}{{ end -}}
{{- $env := list -}}
{{- range $name, $value := merge (dict) .Values.sidecar.env $variables -}}
  {{- $env = append $env (dict "name" $name "value" $value) -}}
{{- end -}}
{{- $_ := set $container "env" $env -}}
{{- $_ := set $container "image" (include "ringproxy.image" .) -}}
{{- $_ := set $container "imagePullPolicy" .Values.image.pullPolicy -}}
{{- $_ := set $container "resources" (merge (dict) .Values.sidecar.resources $container.resources) -}}
{{- if .Values.sidecar.openshift }}{{ $_ := unset $container.securityContext "runAsUser" }}{{ end -}}
{{- toYaml (list $container) -}}
{{- end -}}

{{- define "ringproxy.sidecar.volumes" -}}
{{- $volumes := (.Files.Get "files/sidecar.yaml" | fromYaml).spec.template.spec.volumes -}}
{{- range $volumes -}}
  {{- if .configMap }}{{ $_ := set .configMap "name" ($.Values.existingConfigMap | default (include "ringproxy.name" $)) }}{{ end -}}
  {{- if .secret }}{{ $_ := set .secret "secretName" ($.Values.existingSecret | default (include "ringproxy.name" $)) }}{{ end -}}
{{- end -}}
{{- toYaml $volumes -}}
{{- end -}}
