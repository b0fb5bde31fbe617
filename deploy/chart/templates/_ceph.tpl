{{/* Not empty with csi.engine ceph. */}}
{{- define "cleat.ceph" -}}
{{- if and .Values.csi.enabled (eq .Values.csi.engine "ceph") }}true{{ end -}}
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
    {{- include "cleat.remote.args" (list . "controller") | nindent 4 }}
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
