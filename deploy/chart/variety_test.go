package chart

import (
	"strings"
	"testing"
)

// everything is a release with all components; %s is the driver's mode.
const (
	perNode = `
csi:
  snapshots: {enabled: true}
  addons: {enabled: true, fencePeers: ["a=storage-a:9071"], tlsSecret: fencing}
  topology: {zone: a, rack: r7}
  maxVolumes: 100
  podLabels: {team: storage}
  extraEnv: [{name: GOGC, value: "50"}]
  storageClasses:
    - {}
    - {name: thick, fsType: ext4, reclaimPolicy: Retain, default: true, parameters: {provisioning: thick, readAheadKiB: 1024}, mountOptions: [noatime]}
`
	controllerMode = `
csi:
  mode: controller
  nodeSelector: {kubernetes.io/hostname: node-1}
  controller: {nodeSelector: {kubernetes.io/hostname: node-1}, tolerations: [{operator: Exists}]}
  snapshots: {enabled: true}
  addons: {enabled: true}
  volumeGroupSnapshotClasses: [{}, {name: member, consistency: member, deletionPolicy: Retain}]
  volumeAttributesClasses: [{name: thick, parameters: {provisioning: thick}}]
`
	cephMode = `
csi:
  engine: ceph
  mode: controller
  ceph: {clusterID: rook-ceph, pools: [replicapool, fast], controllerSecret: rook-csi-rbd-provisioner, nodeSecret: rook-csi-rbd-node}
  snapshots: {enabled: true}
  addons: {enabled: true}
  maxVolumes: 100
  storageClasses:
    - {}
    - {name: fast, fsType: ext4, volumeBindingMode: Immediate, parameters: {pool: fast, imageFeatures: layering}}
`
	cephFSMode = `
csi:
  engine: cephfs
  mode: controller
  ceph: {clusterID: rook-ceph, fsName: myfs, controllerSecret: rook-csi-cephfs-provisioner, nodeSecret: rook-csi-cephfs-node}
  snapshots: {enabled: true}
  addons: {enabled: true}
  maxVolumes: 100
  storageClasses:
    - {}
    - {name: fast, volumeBindingMode: Immediate, parameters: {pool: fast, mounter: kernel, backingSnapshot: false}}
`
	spdkMode = `
csi:
  engine: spdk
  mode: controller
  nvme: {clusterID: east, keyDir: /etc/cleat/nvme-keys}
  snapshots: {enabled: true}
  addons: {enabled: true}
  spdk: {topologyLabels: [topology.kubernetes.io/zone, topology.kubernetes.io/region]}
  maxVolumes: 100
  storageClasses:
    - {}
    - {name: fast, fsType: ext4, volumeBindingMode: Immediate, parameters: {target: a, lvolStore: lvs0, thinProvision: false, clearMethod: write_zeroes, allowOldData: true, qos_rw_iops: 5000, qos_r_mbytes: "200", dhchapKey: gold, dhchapCtrlrKey: silver}}
  volumeAttributesClasses: [{name: gold, parameters: {qos_rw_iops: 50000, qos_rw_mbytes: 0, qos_w_mbytes: 100}}]
`
	// The two releases of DPF.
	hostCluster = `
csi:
  engine: spdk
  mode: controller
  driverName: csi.spdk.io
  nvme: {clusterID: east}
  snapshots: {enabled: true}
  addons: {enabled: true}
  spdk: {configMap: targets, secret: passwords, dpuCluster: {credentialsSecret: dpu-cluster, namespace: dpf-operator-system}}
sidecars: {attacher: {repository: registry.example.com/nvidia-external-attacher, tag: v1}}
`
	dpuCluster = `
csi:
  engine: spdk
  mode: controller
  driverName: csi.spdk.io
  snapshots: {enabled: true}
  spdk: {dpuCluster: {serviceAccount: spdk-csi-controller-sa, namespace: dpf-operator-system}}
  storageClasses: [{name: spdkcsi-sc, volumeBindingMode: Immediate}]
dpu: {enabled: true, clusterID: east, nodeSelector: {a: b}}
`
	noneMode = `
csi:
  engine: none
  nvme: {clusterID: east, keySecret: nvme-keys}
  maxVolumes: 100
`
	externalMode = `
image: {repository: registry.example.com/acme-csi, tag: 0.1.0}
csi:
  engine: external
  mode: controller
  driverName: csi.acme.example
  external: {stateFlag: acme-state}
  extraArgs: [--share=/mnt/share]
  extraVolumeMounts: [{name: share, mountPath: /mnt/share, mountPropagation: HostToContainer}]
  extraVolumes: [{name: share, hostPath: {path: /mnt/share}}]
  controller: {extraArgs: [--password-file=/etc/acme/password], extraVolumes: [{name: password, secret: {secretName: acme}}], extraVolumeMounts: [{name: password, mountPath: /etc/acme}]}
  nvme: {clusterID: east, keySecret: nvme-keys}
  snapshots: {enabled: true}
  addons: {enabled: true}
  maxVolumes: 100
  storageClasses:
    - {}
    - {name: fast, fsType: ext4, volumeBindingMode: Immediate, parameters: {tier: fast, replicas: 3}, allowedTopologies: [{matchLabelExpressions: [{key: csi.acme.example/hall, values: [a]}]}]}
`
	// Service accounts with names of their own, and of others.
	accounts = `
csi:
  snapshots: {enabled: true}
  addons: {enabled: true}
  serviceAccount: {name: cleat-drivers, annotations: {a: b}}
  placement: {serviceAccount: {name: cleat-placement}, replicaCount: 2, updateStrategy: {type: RollingUpdate}}
fence: {enabled: true, nodeSelector: {kubernetes.io/hostname: b}, serviceAccount: {name: cleat-fences}}
metrics: {enabled: true, podMonitor: {enabled: true, interval: 10s, labels: {release: prometheus}}, prometheusRule: {enabled: true}}
networkPolicy: {enabled: true}
`
	twoReplicas   = "  controller: {replicaCount: 2}\n"
	fenceListener = "  fence: {tlsSecret: fencing}\n"
	changedBlocks = "  snapshotMetadata: {enabled: true, tlsSecret: metadata, caCert: \"-----BEGIN CERTIFICATE-----\"}\n"
	theOthers     = `
imagePullSecrets: [{name: registry}]
seLinuxOptions: {type: spc_t}
fence: {enabled: true, nodeSelector: {a: b}, ports: [nvme-tcp, 4420, 6800-7568], peers: ["b=storage-b:9071"], listen: ":9071", tlsSecret: fencing, kernelTargets: true}
dpu: {enabled: true, nodeSelector: {a: b}, keysSecret: keys}
takeover: {enabled: true, tlsSecret: takeover, coverage: {maxConcurrent: 2, drivers: [{driver: csi.cleat.dev, local: true}]}}
sriov:
  plugin: {enabled: true, controlled: true, useCDI: true, linkHealth: true, strictConfig: true, config: {resourceList: [{resourceName: dpdk, selectors: [{drivers: [vfio-pci]}]}]}}
  daemon: {enabled: true, mode: apply, hold: 10s, settle: 10s}
metrics: {enabled: true, serviceMonitor: {enabled: true, labels: {release: prometheus}}, prometheusRule: {enabled: true}, dashboard: {enabled: true}}
networkPolicy: {enabled: true, metricsFrom: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]}
`
)

// variety has valid releases that together use every template.
var variety = map[string]string{
	"defaults":                    "",
	"no image":                    "csi: {pool: {image: \"\"}}",
	"own pool":                    "csi: {pool: {hostPath: /data/cleat, overprovisionRatio: 2.5}}",
	"microk8s":                    "kubeletDir: /var/snap/microk8s/common/var/lib/kubelet",
	"per node":                    perNode + theOthers,
	"controller":                  controllerMode + theOthers,
	"controller, no sidecars":     "csi: {mode: controller, nodeSelector: {a: b}, controller: {nodeSelector: {a: b}}, storageClasses: []}",
	"ceph":                        cephMode + theOthers,
	"ceph, no sidecars":           "csi: {engine: ceph, mode: controller, ceph: {clusterID: c, pools: [rbd], controllerSecret: s}, storageClasses: []}",
	"cephfs":                      cephFSMode + theOthers,
	"cephfs, no sidecars":         "csi: {engine: cephfs, mode: controller, ceph: {clusterID: c, controllerSecret: s}}",
	"spdk":                        spdkMode + theOthers,
	"spdk, nothing published":     "csi: {engine: spdk, mode: controller, spdk: {secret: \"\", attachRequired: false}, storageClasses: []}",
	"DPF, host cluster":           hostCluster + "metrics: {enabled: true, prometheusRule: {enabled: true}}\nnetworkPolicy: {enabled: true}",
	"DPF, DPU cluster":            dpuCluster + "metrics: {enabled: true, prometheusRule: {enabled: true}}\nnetworkPolicy: {enabled: true}",
	"external":                    externalMode + theOthers,
	"external, not attached":      "image: {repository: registry.example.com/acme-csi}\ncsi: {engine: external, mode: controller, external: {stateFlag: acme-state, attachRequired: false}}",
	"ceph, takeover":              cephMode + fenceListener + "takeover: {enabled: true}\nnetworkPolicy: {enabled: true}",
	"spdk, takeover":              strings.Replace(spdkMode, "addons: {enabled: true}", "addons: {enabled: false}", 1) + fenceListener + "takeover: {enabled: true, coverage: {drivers: [{driver: nfs.example.com, backend: a}], backends: [{name: a, endpoint: \"a:9071\"}]}}",
	"none":                        noneMode + theOthers,
	"none, defaults":              "csi: {engine: none}",
	"fence alone":                 "csi: {enabled: false}\nfence: {enabled: true, allPorts: true, addons: {enabled: false}, affinity: {nodeAffinity: {}}}",
	"fence of peers":              "csi: {enabled: false}\nfence: {enabled: true, peersOnly: true, peers: [\"a=a:9071\"], tlsSecret: t, nodeSelector: {a: b}}",
	"block devices":               "csi: {enabled: false}\nnetworkPolicy: {enabled: true}\ndpu: {enabled: true, blockDevicesOnly: true, nodeSelector: {a: b}}",
	"plugin of the operator":      "csi: {enabled: false}\nsriov: {plugin: {enabled: true, existingConfigMap: device-plugin-config, configFile: /etc/pcidp/$(NODE_NAME)}}",
	"daemon that follows":         "csi: {enabled: false}\nsriov: {daemon: {enabled: true}}",
	"accounts, snapshots":         accounts + snapshotController,
	"accounts, controller":        controllerMode + snapshotController + "rbac: {create: true}\nmetrics: {enabled: true, podMonitor: {enabled: true}}\nnetworkPolicy: {enabled: true}",
	"changed blocks":              controllerMode + changedBlocks + "networkPolicy: {enabled: true}",
	"changed blocks of ceph":      cephMode + changedBlocks,
	"snapshot-controller":         "csi: {enabled: false}\n" + snapshotController,
	"parent's values":             "global: {registry: x}\nfullnameOverride: other",
	"ceph, replicas":              strings.Replace(cephMode, "addons: {enabled: true}", "addons: {enabled: false}", 1) + twoReplicas,
	"spdk, replicas":              spdkMode + twoReplicas + theOthers,
	"DPF, host cluster, replicas": strings.Replace(hostCluster, "  snapshots", twoReplicas+"  snapshots", 1),
}

// inVariety runs a check on every release of variety.
func inVariety(t *testing.T, check func(t *testing.T, all []object)) {
	t.Helper()
	for name, values := range variety {
		t.Run(name, func(t *testing.T) {
			check(t, render(t, release{values: values, apis: apis}))
		})
	}
}
