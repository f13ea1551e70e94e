{{/* The regular expression for a pattern of a setting's list: its exchanges' names, without anchors. */}}
{{- define "ringproxy.rights.names" -}}
{{- $name := last (splitList "/" .) | replace "?" "%3F" | printf "x://h/%s" | urlParse -}}
{{- trimPrefix "/" $name.path | regexQuoteMeta | replace "\\*" ".*" | replace "\\?" "." -}}
{{- end -}}

{{/* The virtual host of a pattern; empty for a pattern that has none or one with a wildcard. */}}
{{- define "ringproxy.rights.vhost" -}}
{{- $vhost := regexReplaceAll "/?[^/]*$" . "" -}}
{{- if not (regexMatch "[*?]" $vhost) }}{{ include "ringproxy.rights.decoded" $vhost }}{{ end -}}
{{- end -}}

{{/* A part of a URL, without its percent-encoding. */}}
{{- define "ringproxy.rights.decoded" -}}
{{- trimPrefix "/" (printf "x://h/%s" . | urlParse).path -}}
{{- end -}}

{{/* A word for a shell, in quotes where it needs them. */}}
{{- define "ringproxy.rights.word" -}}
{{- if regexMatch "^[-._/a-zA-Z0-9]+$" . }}{{ . }}{{ else }}'{{ replace "'" "'\\''" . }}'{{ end -}}
{{- end -}}

{{/* The regular expression of several, anchored. */}}
{{- define "ringproxy.rights.any" -}}
{{- if eq (len .) 0 }}^${{ else if eq (len .) 1 }}^{{ first . }}${{ else }}^({{ join "|" . }})${{ end -}}
{{- end -}}

{{/*
The commands that give the users of one virtual host their rights. The arguments are `settings` and `vhost`, and what
each line is for stands in docs/how-to/secure.md, docs/reference/access.md and docs/how-to/consume-with-a-group.md.
*/}}
{{- define "ringproxy.rights" -}}
{{- $vhost := .vhost -}}
{{- $lists := dict -}}
{{- range $setting := list "route" "shadow" "pass" "groups" -}}
  {{- $found := list -}}
  {{- range index $.settings $setting | default (ternary (list "*") list (eq $setting "route")) -}}
    {{- if has (include "ringproxy.rights.vhost" .) (list "" $vhost) }}{{ $found = append $found (include "ringproxy.rights.names" .) }}{{ end -}}
  {{- end -}}
  {{- $_ := set $lists $setting $found -}}
{{- end -}}
{{- $exchanges := concat $lists.route $lists.shadow $lists.pass $lists.groups | uniq -}}
{{- $publish := list "amq\\.default" -}}
{{- range $exchanges }}{{ $publish = concat $publish (list . (printf "%s\\.lane\\..*" .)) }}{{ end -}}
{{- $of_groups := list -}}
{{- range $lists.groups }}{{ $of_groups = append $of_groups (printf "%s\\.group(\\..*)?" .) }}{{ end -}}
{{- $own := $of_groups -}}
{{- if and .settings.journal_stream (eq $vhost .default) }}{{ $own = append $own (regexQuoteMeta .settings.journal_stream) }}{{ end -}}
{{- $write := concat $publish $of_groups -}}
{{- if and .settings.groups_dead_letter $lists.groups }}{{ $write = append $write (regexQuoteMeta .settings.groups_dead_letter) }}{{ end -}}
{{- $for := printf "  rabbitmqctl set_permissions -p %s" (include "ringproxy.rights.word" $vhost) -}}
{{- $orders := list -}}
{{- range $lists.groups }}{{ $orders = append $orders (printf "%s\\.group\\.(operators|pauses)" .) }}{{ end -}}
{{- $operators := list -}}
{{- range .settings.groups_operators }}{{ $operators = append $operators (include "ringproxy.rights.word" .) }}{{ end -}}
{{- printf "%s %s '%s' '%s' '%s'\n" $for .writer (include "ringproxy.rights.any" $own) (include "ringproxy.rights.any" $write) (include "ringproxy.rights.any" $of_groups) -}}
{{- if ne .reader .writer -}}
  {{- printf "%s %s '^$' '%s' '^$'\n" $for .reader (include "ringproxy.rights.any" (ternary $orders list (has .reader $operators))) -}}
{{- end -}}
{{- printf "%s PUBLISHER '^$' '%s' '^$'\n" $for (include "ringproxy.rights.any" $publish) -}}
{{- if $lists.groups -}}
  {{- $read := list -}}
  {{- range $lists.groups }}{{ $read = append $read (printf "%s(\\.[0-9]+)?" .) }}{{ end -}}
  {{- printf "%s CONSUMER '^$' '^$' '%s'\n" $for (include "ringproxy.rights.any" $read) -}}
  {{- /* The writer may write that already, and so may guest. */}}
  {{- range without $operators .writer .reader "guest" }}{{ printf "%s %s '^$' '%s' '^$'\n" $for . (include "ringproxy.rights.any" $orders) }}{{ end -}}
{{- end -}}
{{- end -}}
