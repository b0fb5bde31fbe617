{{/* Not empty with csi.engine ceph. */}}
{{- define "cleat.ceph" -}}
{{- if and .Values.csi.enabled (eq .Values.csi.engine "ceph") }}true{{ end -}}
{{- end -}}

{{/* Arguments and environment common to both processes: (list $ "controller") */}}
{{- define "cleat.ceph.args" -}}
{{- $root := index . 0 -}}
- csi
- --engine=ceph
- --services={{ index . 1 }}
- --driver-name={{ $root.Values.csi.driverName }}
- --node-id=$(NODE_NAME)
- --log-format={{ $root.Values.logFormat }}
- --log-level={{ $root.Values.logLevel }}
{{- end -}}

{{/* The controller. It mounts nothing and has no device: only Ceph's libraries. */}}
{{- define "cleat.ceph.controller" -}}
{{- $ceph := .Values.csi.ceph -}}
- name: driver
  image: {{ include "cleat.reference" (list . $ceph.image .Chart.AppVersion) }}
  imagePullPolicy: {{ $ceph.image.pullPolicy }}
  # Starts before the sidecars and ends after them: their calls are drained, and
  # they never lose the socket.
  restartPolicy: Always
  args:
    {{- include "cleat.ceph.args" (list . "controller") | nindent 4 }}
    - --ceph-cluster={{ $ceph.clusterID }}
    {{- range $ceph.pools }}
    - --ceph-pool={{ . }}
    {{- end }}
    - --ceph-secret=/etc/cleat/ceph-secret
    - --metrics-address=:{{ .Values.csi.metricsPort }}
    {{- if .Values.csi.addons.enabled }}
    {{- include "cleat.csi.fencing" (list . "ceph") | nindent 4 }}
    {{- end }}
    {{- with .Values.csi.extraArgs }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
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
  {{- include "cleat.probes" (list . false) | nindent 2 }}
  resources:
    {{- toYaml $ceph.resources | nindent 4 }}
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
    - {name: ceph-config, mountPath: /etc/ceph-csi-config, readOnly: true}
    - {name: ceph-secret, mountPath: /etc/cleat/ceph-secret, readOnly: true}
    - {name: socket, mountPath: /csi}
    # Only the status socket: grants and fences are in the first pool.
    - {name: tmp, mountPath: {{ include "cleat.csi.state" (list . "controller") }}, subPath: state}
    - {name: tmp, mountPath: /tmp}
    {{- if .Values.csi.addons.enabled }}
    - {name: addons, mountPath: /run/csi-addons}
    {{- if .Values.csi.addons.tlsSecret }}
    - {name: fence-tls, mountPath: /etc/cleat/fence-tls, readOnly: true}
    {{- end }}
    {{- end }}
{{- end -}}

{{- define "cleat.ceph.controller.volumes" -}}
- name: ceph-config
  configMap: {name: {{ .Values.csi.ceph.configMap }}}
- name: ceph-secret
  secret: {secretName: {{ .Values.csi.ceph.controllerSecret }}, defaultMode: 256} # 0400
- name: socket
  emptyDir: {}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- if .Values.csi.addons.enabled }}
- name: addons
  emptyDir: {}
{{- with .Values.csi.addons.tlsSecret }}
- name: fence-tls
  secret: {secretName: {{ . }}, defaultMode: 256} # 0400
{{- end }}
{{- end }}
{{- end -}}

{{/* The node service. Keys come with the kubelet's requests: the pod has no Secret. */}}
{{- define "cleat.ceph.node" -}}
- name: driver
  image: {{ include "cleat.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    {{- include "cleat.ceph.args" (list . "node") | nindent 4 }}
    # A fence of these addresses stops the node: the controller gets them with the node's id.
    - --node-address=$(HOST_IPS)
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
    - {name: HOST_IPS, valueFrom: {fieldRef: {fieldPath: status.hostIPs}}}
    # Not flags: commands run in this container (cleat csi status) need them too.
    - {name: CLEAT_ENDPOINT, value: "unix://{{ include "cleat.csi.socketDir" . }}/csi.sock"}
    - {name: CLEAT_STATE_DIR, value: {{ include "cleat.csi.state" (list . "node") }}}
    {{- with .Values.csi.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  # Privileged: it mounts for the kubelet, which needs Bidirectional propagation, and
  # maps images in /sys/bus/rbd, which become devices in the host's /dev.
  {{- include "cleat.privileged" . | nindent 2 }}
  ports:
    - {name: metrics, containerPort: {{ .Values.csi.metricsPort }}}
  {{- include "cleat.probes" (list . true) | nindent 2 }}
  resources:
    {{- toYaml .Values.csi.resources | nindent 4 }}
  # Not the default below /dev, which is the host's.
  terminationMessagePath: /termination-log
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
    - {name: ceph-config, mountPath: /etc/ceph-csi-config, readOnly: true}
    - {name: state, mountPath: {{ include "cleat.csi.state" (list . "node") }}}
    - {name: kubelet-plugins, mountPath: {{ .Values.kubeletDir }}/plugins, mountPropagation: Bidirectional}
    - {name: kubelet-pods, mountPath: {{ .Values.kubeletDir }}/pods, mountPropagation: Bidirectional}
    - {name: registration, mountPath: {{ .Values.kubeletDir }}/plugins_registry}
    - {name: dev, mountPath: /dev}
    - {name: sys, mountPath: /sys}
    # modprobe rbd.
    - {name: modules, mountPath: /lib/modules, readOnly: true}
    - {name: tmp, mountPath: /tmp}
{{- end -}}

{{- define "cleat.ceph.node.volumes" -}}
- name: ceph-config
  configMap: {name: {{ .Values.csi.ceph.configMap }}}
- name: state
  hostPath: {path: {{ include "cleat.csi.state" (list . "node") }}, type: DirectoryOrCreate}
- name: kubelet-plugins
  hostPath: {path: {{ .Values.kubeletDir }}/plugins, type: Directory}
- name: kubelet-pods
  hostPath: {path: {{ .Values.kubeletDir }}/pods, type: Directory}
- name: registration
  hostPath: {path: {{ .Values.kubeletDir }}/plugins_registry, type: Directory}
- name: dev
  hostPath: {path: /dev, type: Directory}
- name: sys
  hostPath: {path: /sys, type: Directory}
- name: modules
  hostPath: {path: /lib/modules, type: DirectoryOrCreate} # kernels without modules have none
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- end -}}
