{{/* Not empty if the release's own driver is a backend by itself. Sidecars that work on another
cluster have no node of this one. */}}
{{- define "cleat.takeover.own" -}}
{{- if and (include "cleat.csi.listens" .) (not (include "cleat.spdk.credentials" .)) }}true{{ end -}}
{{- end -}}

{{- define "cleat.takeover.tlsSecret" -}}
{{- $own := ternary "" .Values.csi.fence.tlsSecret (empty (include "cleat.takeover.own" .)) -}}
{{- default $own .Values.takeover.tlsSecret -}}
{{- end -}}

{{/* The coverage in the values, and the release's own driver unless it has a rule there. */}}
{{- define "cleat.takeover.coverage" -}}
{{- $coverage := deepCopy .Values.takeover.coverage -}}
{{- $driver := .Values.csi.driverName -}}
{{- $ruled := false -}}
{{- range $coverage.drivers }}{{ if eq (toString .driver) $driver }}{{ $ruled = true }}{{ end }}{{ end -}}
{{- if and (include "cleat.takeover.own" .) (not $ruled) -}}
{{- $name := include "cleat.csi.fenceService" . -}}
{{- $drivers := append (default list $coverage.drivers) (dict "driver" $driver "backend" $name) -}}
{{- $backends := append (default list $coverage.backends) (dict "name" $name "endpoint" (printf "%s:%d" (include "cleat.csi.fenceAddress" .) (int .Values.csi.fence.port))) -}}
{{- $_ := set $coverage "drivers" $drivers -}}
{{- $_ := set $coverage "backends" $backends -}}
{{- end -}}
{{- toYaml $coverage -}}
{{- end -}}
