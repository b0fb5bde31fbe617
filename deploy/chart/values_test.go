package chart

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/cleatproject/cleat/test/testkit"
)

// Invalid values are rejected with the value and a remedy.
func TestInvalidValues(t *testing.T) {
	const fence, dpu, plugin = "fence: {enabled: true, nodeSelector: {kubernetes.io/hostname: b}", "dpu: {enabled: true, nodeSelector: {a: b}", "sriov: {plugin: {enabled: true, config: {resourceList: [{resourceName: a}]}"
	tests := map[string]struct {
		values  string
		lacks   string // an API that the cluster does not have
		message string
	}{
		"unknown value":                   {values: "csi: {drivername: x}", message: "'drivername' not allowed"},
		"unknown value of a class":        {values: "csi: {storageClasses: [{fstype: xfs}]}", message: "'fstype' not allowed"},
		"unknown parameter":               {values: "csi: {storageClasses: [{parameters: {provisionning: thick}}]}", message: "'provisionning' not allowed"},
		"value of a parameter":            {values: "csi: {storageClasses: [{parameters: {provisioning: fat}}]}", message: "'thin', 'thick'"},
		"unknown component":               {values: "sriovPlugin: {enabled: true}", message: "'sriovPlugin' not allowed"},
		"mode":                            {values: "csi: {mode: local}", message: "'perNode', 'controller'"},
		"driver's name":                   {values: "csi: {driverName: My_Driver}", message: "/csi/driverName"},
		"long name":                       {values: "csi: {driverName: " + strings.Repeat("a", 64) + "}", message: "/csi/driverName"},
		"long socket":                     {values: "kubeletDir: /var/snap/microk8s/common/var/lib/kubelet\ncsi: {driverName: " + strings.Repeat("a", 63) + "}", message: "has at most 107"},
		"size":                            {values: "csi: {pool: {image: 10 GB}}", message: "/csi/pool/image"},
		"ratio":                           {values: "csi: {pool: {overprovisionRatio: 0.5}}", message: "/csi/pool/overprovisionRatio"},
		"relative directory":              {values: "csi: {pool: {hostPath: data}}", message: "/csi/pool/hostPath"},
		"directory with a slash":          {values: "kubeletDir: /var/lib/kubelet/", message: "/kubeletDir"},
		"pool around the state":           {values: "csi: {pool: {hostPath: /var/lib/cleat}}", message: "set a directory that only the pool uses"},
		"pool in the kubelet's directory": {values: "csi: {pool: {hostPath: /var/lib/kubelet/pool}}", message: "set a directory that only the pool uses"},
		"pool around the kubelet's":       {values: "csi: {pool: {hostPath: /var/lib}}", message: "set a directory that only the pool uses"},
		"topology of the node":            {values: "csi: {topology: {topology.cleat.dev/node: a}}", message: "which each driver sets to its node name"},
		"negative number":                 {values: "csi: {maxVolumes: -1}", message: "/csi/maxVolumes"},
		"port":                            {values: "csi: {metricsPort: 0}", message: "/csi/metricsPort"},
		"file system":                     {values: "csi: {storageClasses: [{fsType: zfs}]}", message: "'xfs', 'ext4', 'btrfs'"},
		"name twice":                      {values: "csi: {storageClasses: [{}, {}]}", message: "csi.storageClasses has a name twice, of cleat, cleat"},
		"name twice, by name":             {values: "csi: {storageClasses: [{}, {name: cleat}]}", message: "has a name twice"},
		"controller anywhere":             {values: "csi: {mode: controller}", message: "select it with csi.nodeSelector and csi.controller.nodeSelector, such as {kubernetes.io/hostname: NODE}"},
		"controller elsewhere":            {values: "csi: {mode: controller, nodeSelector: {a: b}}", message: "csi.controller.nodeSelector"},
		"groups per node":                 {values: "csi: {snapshots: {enabled: true}, volumeGroupSnapshotClasses: [{}]}", message: "does not label VolumeGroupSnapshotContents"},
		"groups without snapshots":        {values: "csi: {mode: controller, nodeSelector: {a: b}, controller: {nodeSelector: {a: b}}, volumeGroupSnapshotClasses: [{}]}", message: "requires csi.snapshots.enabled"},
		"attributes per node":             {values: "csi: {volumeAttributesClasses: [{name: a, parameters: {}}]}", message: "csi.volumeAttributesClasses requires csi.mode controller"},
		"engine":                          {values: "csi: {engine: rbd}", message: "'local', 'ceph', 'cephfs', 'spdk', 'none', 'external'"},
		"external per node":               {values: "csi: {engine: external}", message: "csi.engine external requires csi.mode controller"},
		"external without a flag":         {values: strings.Replace(externalMode, "stateFlag: acme-state", "", 1), message: "requires csi.external.stateFlag and image.repository"},
		"external in the image of cleat":  {values: strings.Replace(externalMode, "registry.example.com/acme-csi", "cleat.local/cleat", 1), message: "requires csi.external.stateFlag and image.repository"},
		"external with topology":          {values: externalMode + "  topology: {zone: a}", message: "csi.topology is for csi.engine local"},
		"spdk per node":                   {values: "csi: {engine: spdk}", message: "csi.engine spdk requires csi.mode controller"},
		"spdk with topology":              {values: spdkMode + "  topology: {zone: a}", message: "csi.topology is for csi.engine local"},
		"spdk, another label":             {values: "csi: {spdk: {topologyLabels: [rack]}}", message: "'topology.kubernetes.io/zone', 'topology.kubernetes.io/region'"},
		"spdk with groups":                {values: spdkMode + "  volumeGroupSnapshotClasses: [{}]", message: "csi.engine spdk has no group snapshots"},
		"keys in two places":              {values: "csi: {engine: none, nvme: {keySecret: k, keyDir: /etc/keys}}", message: "csi.nvme.keySecret and csi.nvme.keyDir exclude each other"},
		"spdk without targets":            {values: "csi: {engine: spdk, mode: controller, spdk: {configMap: \"\"}}", message: "/csi/spdk/configMap"},
		"spdk, a parameter's value":       {values: "csi: {storageClasses: [{parameters: {clearMethod: none}}]}", message: "'unmap', 'write_zeroes'"},
		"spdk, a limit":                   {values: "csi: {volumeAttributesClasses: [{name: a, parameters: {qos_rw_iop: 1}}]}", message: "'qos_rw_iop' not allowed"},
		"one port of the host for spdk":   {values: spdkMode + "  metricsPort: 29802\n" + fence + "}", message: "two containers would listen on the same port in the host's network"},
		"DPF, both clusters":              {values: strings.Replace(hostCluster, "credentialsSecret: dpu-cluster", "credentialsSecret: a, serviceAccount: b", 1), message: "exclude each other"},
		"DPF, the attacher of others":     {values: strings.Split(hostCluster, "sidecars:")[0], message: "requires sidecars.attacher.repository and tag of nvidia-external-attacher"},
		"DPF, fencing without controller": {values: strings.Replace(dpuCluster, "csi:\n", "csi:\n  addons: {enabled: true}\n", 1), message: "csi.spdk.dpuCluster.serviceAccount installs no controller"},
		"ceph per node":                   {values: "csi: {engine: ceph}", message: "csi.engine ceph requires csi.mode controller"},
		"ceph without a cluster":          {values: "csi: {engine: ceph, mode: controller, ceph: {pools: [a], controllerSecret: s}}", message: "csi.engine ceph requires csi.ceph.clusterID"},
		"ceph without a pool":             {values: "csi: {engine: ceph, mode: controller, ceph: {clusterID: a, controllerSecret: s}}", message: "requires csi.ceph.pools"},
		"ceph without a key":              {values: "csi: {engine: ceph, mode: controller, ceph: {clusterID: a, pools: [b]}}", message: "requires csi.ceph.controllerSecret"},
		"a pool of ceph twice":            {values: "csi: {ceph: {pools: [a, a]}}", message: "/csi/ceph/pools"},
		"cephfs per node":                 {values: "csi: {engine: cephfs}", message: "csi.engine cephfs requires csi.mode controller"},
		"cephfs without a key":            {values: "csi: {engine: cephfs, mode: controller, ceph: {clusterID: a}}", message: "csi.engine cephfs requires csi.ceph.controllerSecret"},
		"cephfs with pools":               {values: strings.Replace(cephFSMode, "fsName: myfs", "pools: [a]", 1), message: "csi.ceph.pools is for csi.engine ceph"},
		"RBD with a file system":          {values: strings.Replace(cephMode, "clusterID:", "fsName: myfs, clusterID:", 1), message: "csi.ceph.fsName is for csi.engine cephfs"},
		"cephfs with a type":              {values: cephFSMode + "    - {name: typed, fsType: ext4}", message: "fsType ext4, but volumes of csi.engine cephfs"},
		"ceph with topology":              {values: cephMode + "  topology: {zone: a}", message: "csi.topology is for csi.engine local"},
		"ceph with attribute classes":     {values: cephMode + "  volumeAttributesClasses: [{name: a, parameters: {provisioning: thick}}]", message: "csi.engine ceph has no VolumeAttributesClasses"},
		"cephfs with groups":              {values: cephFSMode + "  volumeGroupSnapshotClasses: [{}]", message: "csi.engine cephfs has no group snapshots"},
		"cephfs with labels":              {values: cephFSMode + "  seLinuxMount: true", message: "csi.seLinuxMount is not for csi.engine cephfs"},
		"node limits too often":           {values: "csi: {nodeAllocatableUpdatePeriodSeconds: 9}", message: "/csi/nodeAllocatableUpdatePeriodSeconds"},
		"none with a controller":          {values: "csi: {engine: none, mode: controller}", message: "csi.engine none has no controller"},
		"none with topology":              {values: noneMode + "  topology: {zone: a}", message: "leave csi.topology empty"},
		"none with attribute classes":     {values: noneMode + "  volumeAttributesClasses: [{name: a, parameters: {provisioning: thick}}]", message: "leave csi.volumeAttributesClasses empty"},
		"none with snapshots":             {values: noneMode + "  snapshots: {enabled: true}", message: "no snapshots and no fencing"},
		"none with fencing":               {values: noneMode + "  addons: {enabled: true}", message: "no snapshots and no fencing"},
		"one port of the host for none":   {values: noneMode + "  metricsPort: 29802\n" + fence + "}", message: "two containers would listen on the same port in the host's network"},
		"one port of the host for ceph":   {values: cephMode + "  metricsPort: 29802\n" + fence + "}", message: "two containers would listen on the same port in the host's network"},
		"no snapshots in the cluster":     {values: "csi: {snapshots: {enabled: true}}", lacks: apis[0], message: "set snapshotController.enabled, or install the CRDs and the snapshot-controller"},
		"no groups in the cluster":        {values: controllerMode, lacks: apis[1], message: "install the group snapshot CRDs"},
		"no CSI-Addons in the cluster":    {values: "csi: {addons: {enabled: true}}", lacks: apis[2], message: "csi.addons.enabled requires the API csiaddons.openshift.io/v1alpha1"},
		"no CSI-Addons for the fence":     {values: fence + "}", lacks: apis[2], message: "fence.addons.enabled requires the API"},
		"no Prometheus in the cluster":    {values: "metrics: {enabled: true, serviceMonitor: {enabled: true}}", lacks: apis[3], message: "install the Prometheus Operator's CRDs"},
		"two replicas of one pool":        {values: strings.Replace(controllerMode, "controller: {", "controller: {replicaCount: 2, ", 1), message: "where another replica cannot serve them"},
		"two replicas and changed blocks": {values: cephMode + changedBlocks + "  controller: {replicaCount: 2}\n", message: "clients to the replica that waits"},
		"listener of local":               {values: "csi: {fence: {tlsSecret: s}}", message: "takeover.coverage has local: true for them"},
		"listener of local's controller":  {values: controllerMode + fenceListener, message: "takeover.coverage has local: true for them"},
		"listener of none":                {values: noneMode + fenceListener, message: "volumes of engine none have no controller"},
		"listener without a controller":   {values: strings.Replace(dpuCluster, "  snapshots", fenceListener+"  snapshots", 1), message: "that of the host cluster"},
		"two certificates":                {values: strings.Replace(cephMode, "addons: {enabled: true}", "addons: {enabled: true, tlsSecret: other}", 1) + fenceListener, message: "use one Secret"},
		"listener's port":                 {values: cephMode + "  fence: {tlsSecret: s, port: 29812}\n", message: "two containers would listen on the same port in the driver's pods"},
		"peers without certificates":      {values: "csi: {addons: {enabled: true, fencePeers: [\"a=b:1\"]}}", message: "requires csi.addons.tlsSecret"},
		"a peer's address":                {values: "csi: {addons: {enabled: true, fencePeers: [\"b:1\"], tlsSecret: t}}", message: "/csi/addons/fencePeers/0"},
		"one port for two":                {values: "csi: {metricsPort: 29812}", message: "two containers would listen on the same port in the driver's pods"},
		"one port of the host for two":    {values: fence + "}\n" + dpu + ", metricsPort: 29802}", message: "two containers would listen on the same port in the host's network"},
		"nothing":                         {values: "csi: {enabled: false}", message: "nothing is enabled"},
		"fence of many, asked as one":     {values: "fence: {enabled: true, nodeSelector: {a: b}}", message: "a NetworkFence is sent to one pod of a release"},
		"fence everywhere":                {values: "fence: {enabled: true}", message: "fence.nodeSelector or fence.affinity"},
		"fence, peers":                    {values: fence + ", listen: \":9071\"}", message: "require fence.tlsSecret"},
		"fence of nothing":                {values: fence + ", peersOnly: true}", message: "fence.peersOnly requires fence.peers"},
		"fence, ports":                    {values: fence + ", ports: [nvmetcp]}", message: "/fence/ports/0"},
		"fence, ports twice":              {values: fence + ", ports: [iscsi], allPorts: true}", message: "leave fence.ports empty"},
		"DPU everywhere":                  {values: "dpu: {enabled: true}", message: "dpu.nodeSelector or dpu.affinity"},
		"DPU without a provider":          {values: dpu + ", providerName: \"\"}", message: "/dpu/providerName"},
		"plugin without a configuration":  {values: "sriov: {plugin: {enabled: true}}", message: "requires sriov.plugin.config"},
		"two configurations":              {values: plugin + ", existingConfigMap: a}}", message: "exclude each other"},
		"no resource list":                {values: "sriov: {plugin: {enabled: true, config: {resources: []}}}", message: "resourceList"},
		"daemon beside a free plugin":     {values: plugin + "}, daemon: {enabled: true}}", message: "sriov.daemon.enabled requires sriov.plugin.controlled"},
		"daemon's mode":                   {values: "sriov: {daemon: {enabled: true, mode: configure}}", message: "'follow', 'apply'"},
		"monitor of nothing":              {values: "metrics: {serviceMonitor: {enabled: true}}", message: "requires metrics.enabled"},
		"a number as a label":             {values: "csi: {nodeSelector: {a: 1}}", message: "/csi/nodeSelector/a"},
		"pull policy":                     {values: "image: {pullPolicy: Sometimes}", message: "/image/pullPolicy"},
		"registry with a slash":           {values: "imageRegistry: registry.example.com/", message: "/imageRegistry"},
		"log level":                       {values: "logLevel: trace", message: "/logLevel"},
		"surge of a driver":               {values: "csi: {updateStrategy: {rollingUpdate: {maxSurge: 1}}}", message: "/csi/updateStrategy/rollingUpdate/maxSurge"},
		"probe of something else":         {values: "fence: {livenessProbe: {httpGet: {path: /}}}", message: "'httpGet' not allowed"},
		"replicas of the controller":      {values: "csi: {controller: {replicaCount: 2}}", message: "where another replica cannot serve them"},
		"container without an image":      {values: "csi: {extraContainers: [{name: a}]}", message: "missing property 'image'"},
		"a label of the chart":            {values: "commonLabels: {app.kubernetes.io/name: x}", message: "commonLabels has app.kubernetes.io/name, which the chart sets"},
		"account without a name":          {values: "csi: {serviceAccount: {create: false}}", message: "serviceAccount.create is false for csi-node: set serviceAccount.name"},
		"account of two":                  {values: "csi: {serviceAccount: {name: a}, placement: {serviceAccount: {name: a}}}", message: "csi-node and csi-placement both have the service account a"},
		"account of another by default":   {values: "csi: {serviceAccount: {name: cleat-csi-placement}}", message: "both have the service account cleat-csi-placement"},
		"log level of a sidecar":          {values: "sidecars: {resizer: {logVerbosity: debug}}", message: "/sidecars/resizer/logVerbosity"},
		"two monitors":                    {values: "metrics: {enabled: true, serviceMonitor: {enabled: true}, podMonitor: {enabled: true}}", message: "exclude each other: alerts would count each pod twice"},
		"pods that are not reachable":     {values: "metrics: {podMonitor: {enabled: true}}", message: "metrics.podMonitor.enabled requires metrics.enabled"},
		"no Prometheus for pods":          {values: "metrics: {enabled: true, podMonitor: {enabled: true}}", lacks: apis[3], message: "install the Prometheus Operator's CRDs"},
		"topology of no node":             {values: "csi: {storageClasses: [{allowedTopologies: [{matchLabelExpressions: [{key: rack, values: [a]}]}]}]}", message: "key rack, but nodes of csi.engine local have topology.cleat.dev/node"},
		"topology of ceph":                {values: cephMode + "    - {name: a, allowedTopologies: [{matchLabelExpressions: [{key: topology.cleat.dev/node, values: [a]}]}]}", message: "but nodes of csi.engine ceph have no topology"},
		"topology without values":         {values: "csi: {storageClasses: [{allowedTopologies: [{key: a}]}]}", message: "/csi/storageClasses/0/allowedTopologies/0"},
		"snapshot-controller without API": {values: "csi: {snapshots: {enabled: true}}\n" + snapshotController, lacks: apis[0], message: "kubectl apply --server-side -f deploy/chart/charts/snapshot-crds/crds"},
		"snapshot-controller of the host": {values: hostCluster + snapshotController, message: "set it in the release of the DPU cluster"},
		"changed blocks per node":         {values: perNode + changedBlocks, message: "csi.snapshotMetadata.enabled requires csi.mode controller"},
		"changed blocks of spdk":          {values: spdkMode + changedBlocks, message: "the other engines have no changed blocks"},
		"changed blocks without keys":     {values: controllerMode + "  snapshotMetadata: {enabled: true}", message: "a certificate for cleat-snapshot-metadata.storage"},
		"changed blocks without API":      {values: controllerMode + changedBlocks, lacks: apis[4], message: "requires the API cbt.storage.k8s.io/v1beta1"},
		"values of the CRDs":              {values: "snapshotController: {crds: true}", message: "'crds' not allowed"},
		"object without a kind":           {values: "extraDeploy: [{metadata: {name: a}}]", message: "/extraDeploy/0"},
		"digest":                          {values: "image: {digest: 0123abcd}", message: "/image/digest"},
		"digest of a sidecar":             {values: "sidecars: {attacher: {digest: \"sha256:0123\"}}", message: "/sidecars/attacher/digest"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := release{values: test.values}
			for _, a := range apis {
				if a != test.lacks {
					r.apis = append(r.apis, a)
				}
			}
			out, err := r.helm(t)
			if err == nil || !strings.Contains(out, test.message) {
				t.Errorf("got error %v, want a message with %q:\n%s", err, test.message, out)
			}
		})
	}
}

// Kubernetes before 1.30 does not have all fields.
func TestOldKubernetes(t *testing.T) {
	p := testkit.Value(peers())(t)
	out, err := command(t, p.helm, "template", "cleat", ".", "--kube-version", "1.29.9")
	if err == nil || !strings.Contains(out, "requires kubeVersion: >=1.30.0-0") {
		t.Errorf("%v\n%s", err, out)
	}
}

var tableRow = regexp.MustCompile("(?m)^\\| `([a-zA-Z0-9.]+)` \\| (?:`(.*?)`|) \\|")

// The table in README.md has every value with its default, and no others.
func TestReadmeHasEveryValue(t *testing.T) {
	text := testkit.Value(os.ReadFile("README.md"))(t)
	got := map[string]string{}
	for _, m := range tableRow.FindAllSubmatch(text, -1) {
		if _, twice := got[string(m[1])]; twice {
			t.Errorf("%s is in the table twice", m[1])
		}
		got[string(m[1])] = string(m[2])
	}
	if diff := cmp.Diff(defaults(t), got); diff != "" {
		t.Errorf("values.yaml (-) and the table (+):\n%s", diff)
	}
}

// defaults returns the leaves of values.yaml by their paths.
func defaults(t *testing.T) map[string]string {
	t.Helper()
	text := testkit.Value(os.ReadFile("values.yaml"))(t)
	var values map[string]any
	testkit.Must(t, yaml.UnmarshalStrict(text, &values))
	leaves := map[string]string{}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		m, ok := v.(map[string]any)
		last := path[strings.LastIndexByte(path, '.')+1:]
		if !ok || len(m) == 0 || slices.Contains([]string{"resources", "labels", "livenessProbe", "updateStrategy", "serviceAccount"}, last) {
			leaves[path] = flow(t, v)
			return
		}
		for k, v := range m {
			walk(strings.TrimPrefix(path+"."+k, "."), v)
		}
	}
	walk("", values)
	return leaves
}

// flow formats a value as one line of YAML; an empty string is empty.
func flow(t *testing.T, v any) string {
	t.Helper()
	switch v := v.(type) {
	case string:
		return v
	case map[string]any:
		var parts []string
		for k, x := range v {
			parts = append(parts, k+": "+flow(t, x))
		}
		slices.Sort(parts)
		return "{" + strings.Join(parts, ", ") + "}"
	case []any:
		var parts []string
		for _, x := range v {
			parts = append(parts, flow(t, x))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	default:
		return fmt.Sprint(v)
	}
}

// The sidecars have the versions that the tests on a real Kubernetes use.
func TestSidecarVersionsAreTested(t *testing.T) {
	var modules bytes.Buffer
	for _, dir := range []string{"sidecars", "csiaddons"} {
		text := testkit.Value(os.ReadFile("../../test/kubernetes/programs/" + dir + "/go.mod"))(t)
		modules.Write(text)
	}
	values := defaults(t)
	if tag := values["snapshotController.image.tag"]; tag != "" {
		t.Errorf("snapshot-controller has version %s, not that of csi-snapshotter", tag)
	}
	for sidecar, module := range map[string]string{
		"provisioner": "external-provisioner/v6", "resizer": "external-resizer/v2", "snapshotter": "external-snapshotter/v8",
		"attacher": "external-attacher/v4", "addons": "kubernetes-csi-addons",
	} {
		if tag := values["sidecars."+sidecar+".tag"]; !regexp.MustCompile(regexp.QuoteMeta(module+" "+tag) + `\s`).Match(modules.Bytes()) {
			t.Errorf("%s has version %s, which the tests do not build", sidecar, tag)
		}
	}
}
