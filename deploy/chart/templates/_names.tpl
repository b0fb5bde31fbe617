{{- define "cleat.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Prefix of every name, so that two releases can share a cluster. */}}
{{- define "cleat.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "cleat.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "cleat.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Names of cluster-wide objects contain the release's namespace: two namespaces can have releases of one name. */}}
{{- define "cleat.clusterName" -}}
{{- $root := index . 0 -}}
{{- printf "%s-%s-%s" $root.Release.Namespace (include "cleat.fullname" $root) (index . 1) | trunc 253 -}}
{{- end -}}

{{- define "cleat.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "cleat.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* Labels of an object of a component, with those of a value if it has more, which override
commonLabels: (list $ "csi-node" .Values.csi.podLabels) */}}
{{- define "cleat.labels" -}}
{{- $root := index . 0 -}}
{{ include "cleat.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with merge dict (ternary (last .) dict (gt (len .) 2)) $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "cleat.image" -}}
{{- include "cleat.reference" (list . .Values.image .Chart.AppVersion) -}}
{{- end -}}

{{/* Reference of an image: (list $ .Values.image "default tag"). A digest wins over a tag.
The first part of a repository is its registry when it has a dot or a port, or is localhost. */}}
{{- define "cleat.reference" -}}
{{- $image := index . 1 -}}
{{- $repository := $image.repository -}}
{{- with (index . 0).Values.imageRegistry -}}
{{- $repository = printf "%s/%s" . (regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" $repository "") -}}
{{- end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default (index . 2) $image.tag) -}}
{{- end -}}
{{- end -}}
