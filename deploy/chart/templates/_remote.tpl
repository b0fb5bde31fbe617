{{/* Not empty with csi.engine none. */}}
{{- define "cleat.static" -}}
{{- if and .Values.csi.enabled (eq .Values.csi.engine "none") }}true{{ end -}}
{{- end -}}

{{/* Not empty with csi.engine external. */}}
{{- define "cleat.external" -}}
{{- if and .Values.csi.enabled (eq .Values.csi.engine "external") }}true{{ end -}}
{{- end -}}

{{/* Its part of cleat.remote.controller. */}}
{{- define "cleat.external.controller.args" -}}
- --{{ .Values.csi.external.stateFlag }}=configmap:{{ .Release.Namespace }}/{{ include "cleat.state" . }}
{{- with .Values.csi.nvme.clusterID }}
- --cluster-id={{ . }}
{{- end }}
{{- end -}}

{{- define "cleat.external.controller.mounts" -}}
# For its state.
{{ include "cleat.token.mount" . }}
{{- end -}}

{{- define "cleat.external.controller.volumes" -}}
{{- end -}}

{{/* ConfigMap with the controller's state, of the engines that keep it there. The driver
creates it, and uninstalling keeps it. */}}
{{- define "cleat.state" -}}
{{- include "cleat.fullname" . }}-{{ .Values.csi.engine }}-state
{{- end -}}

{{/* Not empty with an engine whose nodes attach NVMe namespaces. */}}
{{- define "cleat.nvme" -}}
{{- include "cleat.static" . }}{{ include "cleat.spdk" . -}}
{{- end -}}

{{/* Not empty with an engine whose volumes are on other machines. Its nodes attach them in
the host's network. */}}
{{- define "cleat.remote" -}}
{{- include "cleat.ceph" . }}{{ include "cleat.nvme" . }}{{ include "cleat.external" . -}}
{{- end -}}

{{/* Not empty if the release has pods of the node service, and of the controller. */}}
{{- define "cleat.hasNode" -}}
{{- if and .Values.csi.enabled (not (include "cleat.spdk.credentials" .)) (not (include "cleat.spdk.account" .)) }}true{{ end -}}
{{- end -}}

{{/* Not empty if several replicas of the controller elect one by this Lease. */}}
{{- define "cleat.controller.elects" -}}
{{- if and (include "cleat.hasController" .) (gt (int .Values.csi.controller.replicaCount) 1) }}true{{ end -}}
{{- end -}}

{{- define "cleat.controller.lease" -}}
{{- include "cleat.fullname" . }}-csi-controller
{{- end -}}

{{- define "cleat.hasController" -}}
{{- if and .Values.csi.enabled (eq .Values.csi.mode "controller") (not (include "cleat.static" .)) (not (include "cleat.spdk.account" .)) }}true{{ end -}}
{{- end -}}

{{/* Not empty if volumes are in pools of nodes, so that restores have to be placed. */}}
{{- define "cleat.placement" -}}
{{- if and .Values.csi.enabled (eq .Values.csi.mode "perNode") (not (include "cleat.static" .)) .Values.csi.placement.enabled }}true{{ end -}}
{{- end -}}

{{/* Arguments common to their processes: (list $ "controller") */}}
{{- define "cleat.remote.args" -}}
{{- $root := index . 0 -}}
- csi
{{- if not (include "cleat.external" $root) }}
- --engine={{ $root.Values.csi.engine }}
{{- end }}
- --services={{ index . 1 }}
- --driver-name={{ $root.Values.csi.driverName }}
- --node-id=$(NODE_NAME)
- --log-format={{ $root.Values.logFormat }}
- --log-level={{ $root.Values.logLevel }}
{{- end -}}

{{/* Name of the parts of their controller that an engine has of its own. */}}
{{- define "cleat.remote.part" -}}
cleat.{{ ternary "ceph" .Values.csi.engine (not (empty (include "cleat.ceph" .))) }}.controller
{{- end -}}

{{/* Their controller. It mounts nothing and has no device. */}}
{{- define "cleat.remote.controller" -}}
{{- $part := include "cleat.remote.part" . -}}
{{- $image := .Values.image -}}
{{- $resources := .Values.csi.resources -}}
{{- if include "cleat.ceph" . -}}
{{- $image = .Values.csi.ceph.image -}}
{{- $resources = .Values.csi.ceph.resources -}}
{{- end -}}
- name: driver
  image: {{ include "cleat.reference" (list . $image .Chart.AppVersion) }}
  imagePullPolicy: {{ $image.pullPolicy }}
  # Starts before the sidecars and ends after them: their calls are drained, and
  # they never lose the socket.
  restartPolicy: Always
  args:
    {{- include "cleat.remote.args" (list . "controller") | nindent 4 }}
    {{- include (printf "%s.args" $part) . | nindent 4 }}
    {{- if include "cleat.controller.elects" . }}
    - --lease={{ .Release.Namespace }}/{{ include "cleat.controller.lease" . }}
    {{- end }}
    - --metrics-address=:{{ .Values.csi.metricsPort }}
    {{- if or .Values.csi.addons.enabled (include "cleat.csi.listens" .) }}
    {{- include "cleat.csi.fencing" (list . "remote") | trim | nindent 4 }}
    {{- end }}
    {{- include "cleat.extra" (list (concat .Values.csi.extraArgs .Values.csi.controller.extraArgs) 4) }}
  env:
    - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    # Not flags: commands run in this container (cleat csi status) need them too.
    - {name: CLEAT_ENDPOINT, value: "unix:///csi/csi.sock"}
    - {name: CLEAT_STATE_DIR, value: {{ include "cleat.csi.state" (list . "controller") }}}
    {{- with .Values.csi.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  # Root without capabilities: its socket is root's.
  {{- include "cleat.rootWithoutCapabilities" . | nindent 2 }}
  ports:
    - {name: metrics, containerPort: {{ .Values.csi.metricsPort }}}
    {{- if include "cleat.csi.listens" . }}
    - {name: fence, containerPort: {{ .Values.csi.fence.port }}}
    {{- end }}
  {{- include "cleat.probes" (list . false .Values.csi.controller) | nindent 2 }}
  resources:
    {{- toYaml $resources | nindent 4 }}
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
    {{- include (printf "%s.mounts" $part) . | nindent 4 }}
    - {name: socket, mountPath: /csi}
    # Only the status socket: grants and fences are not on this node.
    - {name: tmp, mountPath: {{ include "cleat.csi.state" (list . "controller") }}, subPath: state}
    - {name: tmp, mountPath: /tmp}
    {{- if .Values.csi.addons.enabled }}
    - {name: addons, mountPath: /run/csi-addons}
    {{- end }}
    {{- if include "cleat.csi.fenceSecret" . }}
    - {name: fence-tls, mountPath: /etc/cleat/fence-tls, readOnly: true}
    {{- end }}
    {{- include "cleat.extra" (list .Values.csi.controller.extraVolumeMounts 4) }}
{{- end -}}

{{- define "cleat.remote.controller.volumes" -}}
{{- include (printf "%s.volumes" (include "cleat.remote.part" .)) . }}
- name: socket
  emptyDir: {}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- if .Values.csi.addons.enabled }}
- name: addons
  emptyDir: {}
{{- end }}
{{- with include "cleat.csi.fenceSecret" . }}
- name: fence-tls
  secret: {secretName: {{ . }}, defaultMode: 256} # 0400
{{- end }}
{{- end -}}

{{/* Their node service. Keys of Ceph come with the kubelet's requests: that pod has no Secret. */}}
{{- define "cleat.remote.node" -}}
{{- $ceph := include "cleat.ceph" . -}}
{{- $cephfs := include "cleat.cephfs" . -}}
{{- $fenced := not (include "cleat.static" .) -}}
{{- $nvme := .Values.csi.nvme -}}
{{- $labels := ternary .Values.csi.spdk.topologyLabels list (not (empty (include "cleat.spdk" .))) -}}
- name: driver
  image: {{ include "cleat.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    {{- include "cleat.remote.args" (list . "node") | nindent 4 }}
    {{- if $fenced }}
    # A fence of these addresses stops the node: the controller gets them with the node's id.
    - --node-address=$(HOST_IPS)
    {{- end }}
    {{- if include "cleat.bootReports" . }}
    # Before it has volumes: a fence can then end with a reboot.
    {{- include "cleat.bootReports.arg" . | nindent 4 }}
    {{- end }}
    {{- if not $ceph }}
    {{- with $nvme.clusterID }}
    - --cluster-id={{ . }}
    {{- end }}
    {{- range $i, $label := $labels }}
    - --topology={{ $label }}=$(TOPOLOGY_{{ $i }})
    {{- end }}
    {{- if or $nvme.keySecret $nvme.keyDir }}
    - --nvme-key-dir=/etc/cleat/nvme-keys
    {{- end }}
    {{- end }}
    - --registration-dir={{ .Values.kubeletDir }}/plugins_registry
    {{- with .Values.csi.maxVolumes }}
    - --max-volumes={{ int64 . }}
    {{- end }}
    - --metrics-address={{ include "cleat.hostMetricsAddress" (list . .Values.csi.metricsPort) }}
    {{- with .Values.csi.extraArgs }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  env:
    - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    {{- if $fenced }}
    - {name: HOST_IPS, valueFrom: {fieldRef: {fieldPath: status.hostIPs}}}
    {{- end }}
    {{- range $i, $label := $labels }}
    # Pods have these labels of their node since Kubernetes 1.35.
    - {name: TOPOLOGY_{{ $i }}, valueFrom: {fieldRef: {fieldPath: "metadata.labels['{{ $label }}']"}}}
    {{- end }}
    # Not flags: commands run in this container (cleat csi status) need them too.
    - {name: CLEAT_ENDPOINT, value: "unix://{{ include "cleat.csi.socketDir" . }}/csi.sock"}
    - {name: CLEAT_STATE_DIR, value: {{ include "cleat.csi.state" (list . "node") }}}
    {{- with .Values.csi.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- if $cephfs }}
  # Privileged: it mounts for the kubelet, which needs Bidirectional propagation, and
  # reads the kernel's clients of Ceph in debugfs.
  {{- else }}
  # Privileged: it mounts for the kubelet, which needs Bidirectional propagation, and
  # {{ if $ceph }}maps images in /sys/bus/rbd{{ else if include "cleat.external" . }}attaches volumes{{ else }}connects controllers in /dev/nvme-fabrics{{ end }}, which become devices in the host's /dev.
  {{- end }}
  {{- include "cleat.privileged" . | nindent 2 }}
  ports:
    - {name: metrics, containerPort: {{ .Values.csi.metricsPort }}}
  {{- include "cleat.probes" (list . true .Values.csi) | nindent 2 }}
  resources:
    {{- toYaml .Values.csi.resources | nindent 4 }}
  # Not the default below /dev, which is the host's.
  terminationMessagePath: /termination-log
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
    {{- if $ceph }}
    - {name: ceph-config, mountPath: /etc/ceph-csi-config, readOnly: true}
    {{- if include "cleat.bootReports" . }}
    {{- include "cleat.token.mount" . | nindent 4 }}
    {{- end }}
    {{- else if or $nvme.keySecret $nvme.keyDir }}
    - {name: nvme-keys, mountPath: /etc/cleat/nvme-keys, readOnly: true}
    {{- end }}
    {{- if $cephfs }}
    # With the mounts of volumes, which the next pod finds there.
    - {name: state, mountPath: {{ include "cleat.csi.state" (list . "node") }}, mountPropagation: Bidirectional}
    {{- else }}
    - {name: state, mountPath: {{ include "cleat.csi.state" (list . "node") }}}
    {{- end }}
    - {name: kubelet-plugins, mountPath: {{ .Values.kubeletDir }}/plugins, mountPropagation: Bidirectional}
    - {name: kubelet-pods, mountPath: {{ .Values.kubeletDir }}/pods, mountPropagation: Bidirectional}
    - {name: registration, mountPath: {{ .Values.kubeletDir }}/plugins_registry}
    {{- if not $cephfs }}
    - {name: dev, mountPath: /dev}
    - {name: sys, mountPath: /sys}
    {{- end }}
    # modprobe {{ if include "cleat.external" . }}of what the engine needs{{ else if $cephfs }}ceph{{ else }}{{ ternary "nvme-tcp" "rbd" (empty $ceph) }}{{ end }}.
    - {name: modules, mountPath: /lib/modules, readOnly: true}
    - {name: tmp, mountPath: /tmp}
    {{- include "cleat.extra" (list .Values.csi.extraVolumeMounts 4) }}
{{- end -}}

{{- define "cleat.remote.node.volumes" -}}
- name: state
  hostPath: {path: {{ include "cleat.csi.state" (list . "node") }}, type: DirectoryOrCreate}
{{- if include "cleat.ceph" . }}
- name: ceph-config
  configMap: {name: {{ .Values.csi.ceph.configMap }}}
{{- if include "cleat.bootReports" . }}
{{ include "cleat.token.volume" . }}
{{- end }}
{{- else if .Values.csi.nvme.keySecret }}
- name: nvme-keys
  secret: {secretName: {{ .Values.csi.nvme.keySecret }}, defaultMode: 256} # 0400
{{- else if .Values.csi.nvme.keyDir }}
- name: nvme-keys
  hostPath: {path: {{ .Values.csi.nvme.keyDir }}, type: Directory}
{{- end }}
- name: kubelet-plugins
  hostPath: {path: {{ .Values.kubeletDir }}/plugins, type: Directory}
- name: kubelet-pods
  hostPath: {path: {{ .Values.kubeletDir }}/pods, type: Directory}
- name: registration
  hostPath: {path: {{ .Values.kubeletDir }}/plugins_registry, type: Directory}
{{- if not (include "cleat.cephfs" .) }}
- name: dev
  hostPath: {path: /dev, type: Directory}
- name: sys
  hostPath: {path: /sys, type: Directory}
{{- end }}
- name: modules
  hostPath: {path: /lib/modules, type: DirectoryOrCreate} # kernels without modules have none
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- end -}}
