package request_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

const (
	nqn  = "nqn.2016-06.io.spdk:cnode1"
	host = "nqn.2014-08.org.nvmexpress:uuid:5d0e6b1c-934f-4a27-b861-2ec4709ad358"
	pool = "0198a6b2-7c1e-7b5e-9d0a-0123456789ab"
	lvol = "7f3a8f0e-3a5e-4c55-9d4c-50b0d3a4a111"
)

func publish() kv {
	return kv{"nv-volumeName": "pvc-1f0e", "nv-volumeAttachmentName": "csi-3ad2"}
}

func endpoints(all ...string) []netip.AddrPort {
	var out []netip.AddrPort
	for _, s := range all {
		out = append(out, netip.MustParseAddrPort(s))
	}
	return out
}

func locate(mode request.Mode, publish, volume, storage kv) (request.Create, error) {
	c, err := request.ParseCreate(&storagev1.CreateDeviceRequest{
		VolumeId: "pvc-1f0e", VolumeMode: string(mode), PublishContext: publish, VolumeContext: volume, StorageParameters: storage,
	})
	if err != nil {
		return c, err
	}
	return c, c.Locate()
}

type located struct {
	name    string
	mode    request.Mode
	context kv
	want    access.Access
}

func dialects() []located {
	return []located{
		{
			"nvidia-block", request.Block,
			kv{"targetType": "tcp", "targetAddr": "192.0.2.1", "targetPort": "4420", "nqn": nqn},
			access.NVMe{Transport: "tcp", Paths: endpoints("192.0.2.1:4420"), NQN: nqn},
		},
		{
			"nvidia-block with the transport of NVIDIA's SPDK", request.Block,
			kv{"targetType": "NVDA_TCP", "targetAddr": "2001:db8::1", "targetPort": "4421", "nqn": nqn},
			access.NVMe{Transport: "tcp", Paths: endpoints("[2001:db8::1]:4421"), NQN: nqn},
		},
		{
			"spdk-csi", request.Block,
			kv{"targetType": "rdma", "targetAddr": "192.0.2.1", "targetPort": "4420", "nqn": nqn, "model": lvol, "lvolSize": "268435456", "lvstore": "lvs0"},
			access.NVMe{Transport: "rdma", Paths: endpoints("192.0.2.1:4420"), NQN: nqn},
		},
		{
			"simplyblock", request.Block,
			kv{
				"name": lvol, "uuid": lvol, "model": lvol, "nqn": nqn, "targetType": "tcp", "nsId": "9", "hostIface": "ens1f0", "hostNQN": host,
				"connections": `[{"ip":"192.0.2.1","port":4420},{"ip":"192.0.2.2","port":4420}]`, "reconnectDelay": "2", "nrIoQueues": "3", "ctrlLossTmo": "60",
				"poolID": "p", "cluster_id": "c",
			},
			access.NVMe{
				Transport: "tcp", Paths: endpoints("192.0.2.1:4420", "192.0.2.2:4420"), NQN: nqn, NSID: 9, UUID: lvol, HostNQN: host,
				Timeouts: access.Timeouts{Loss: access.Sec(60), Delay: access.Sec(2)}, IOQueues: 3,
			},
		},
		{
			"SPDK's own words", request.Block,
			kv{"trtype": "TCP", "traddr": "192.0.2.1", "trsvcid": "4420", "subnqn": nqn, "psk": "tenant-psk", "dhchap_key": "tenant.dhchap", "hdgst": "true"},
			access.NVMe{Transport: "tcp", Paths: endpoints("192.0.2.1:4420"), NQN: nqn, TLSKey: "tenant-psk", DHChapKey: "tenant.dhchap", HeaderDigest: true},
		},
		{
			"ceph-csi, an image", request.Block,
			kv{"clusterID": "east", "pool": "rbd", "radosNamespace": "team", "imageName": "csi-vol-1", "imageFeatures": "layering", "journalPool": "rbd"},
			access.RBD{Ceph: access.Ceph{ClusterID: "east"}, Pool: "rbd", Namespace: "team", Image: "csi-vol-1"},
		},
		{
			"ceph-csi, a subvolume", request.Filesystem,
			kv{"clusterID": "east", "fsName": "cephfs", "subvolumeName": "csi-vol-2", "subvolumePath": "/volumes/csi/csi-vol-2/0f"},
			access.CephFS{Ceph: access.Ceph{ClusterID: "east"}, FS: "cephfs", Path: "/volumes/csi/csi-vol-2/0f"},
		},
		{
			"csi-driver-nfs and nvidia-fs", request.Filesystem,
			kv{"server": "nfs.example.com", "share": "/export", "subdir": "pvc-1f0e", "mountoptions": "nfsvers=4.1,hard", "csi.storage.k8s.io/pv/name": "pvc-1f0e"},
			access.NFS{Server: "nfs.example.com", Share: "/export", SubDir: "pvc-1f0e", Options: []string{"nfsvers=4.1", "hard"}},
		},
		{
			"csi-driver-nfs in another case", request.Filesystem,
			kv{"Server": "192.0.2.9", "SHARE": "/export/", "subDir": "/pvc-1f0e/", "mountOptions": "ro"},
			access.NFS{Server: "192.0.2.9", Share: "/export", SubDir: "pvc-1f0e", Options: []string{"ro"}},
		},
		{"a file", request.Block, kv{"targetType": "file", "pool": pool, "file": "images/a"}, access.File{Pool: pool, Name: "images/a"}},
		{"a directory", request.Filesystem, kv{"targetType": "file", "pool": pool, "file": "trees/a"}, access.File{Pool: pool, Name: "trees/a"}},
	}
}

func TestDialects(t *testing.T) {
	for _, c := range dialects() {
		t.Run(c.name, func(t *testing.T) {
			got := testkit.Value(locate(c.mode, publish(), c.context, kv{"num_queues": "8", "targetAddr": "203.0.113.9", "nqn": "nonsense"}))(t)
			testkit.Diff(t, "got.Access", c.want, got.Access, cmpopts.EquateComparable(netip.AddrPort{}))
			if !got.Contexts.Equal(request.Contexts{Publish: publish(), Volume: c.context, Storage: kv{"num_queues": "8", "targetAddr": "203.0.113.9", "nqn": "nonsense"}}) {
				t.Errorf("the contexts are not kept as they came: %+v", got.Contexts)
			}
		})
	}
}

// The publish context overrides the volume context, unless it would be another
// volume.
func TestPublishContextWins(t *testing.T) {
	volume := kv{"targetType": "tcp", "targetAddr": "192.0.2.1", "nqn": nqn}
	got, err := locate(request.Block, kv{"targetAddr": "192.0.2.2"}, volume, nil)
	if err != nil || !access.Equal(got.Access, access.NVMe{Transport: "tcp", Paths: endpoints("192.0.2.2:4420"), NQN: nqn}) {
		t.Errorf("%+v, %v", got.Access, err)
	}
	_, err = locate(request.Block, kv{"nqn": nqn + "x"}, volume, nil)
	names(t, err, "different volumes", nqn+"x")
}

// Every locator with the other volume mode, except files: the pool knows their
// type.
func TestModeAndLocator(t *testing.T) {
	for _, c := range dialects() {
		other, fit := request.Block, "a block device needs an NVMe-oF namespace (targetType tcp"
		if c.mode == request.Block {
			other, fit = request.Filesystem, "a file system needs an NFS export (targetType nfs"
		}
		got, err := locate(other, publish(), c.context, nil)
		if _, either := c.want.(access.File); either {
			if err != nil {
				t.Errorf("%s with %s: %v", c.name, other, err)
			}
			continue
		}
		names(t, err, "volume pvc-1f0e", "volume_mode "+string(other), "locator for "+c.want.Protocol(), fit)
		if errors.Is(err, access.ErrNone) || got.Access != nil {
			t.Errorf("%s: %+v, %v", c.name, got.Access, err)
		}
	}
}

func TestLocateRefuses(t *testing.T) {
	for name, contexts := range map[string][3]kv{
		"no contexts":                        {},
		"the node driver's words alone":      {publish(), nil, nil},
		"foreign keys":                       {nil, {"csi.example.com/x": "y"}, nil},
		"a locator in the wrong map":         {nil, nil, {"targetType": "tcp", "targetAddr": "192.0.2.1", "nqn": nqn}},
		"a kind that is known by nothing":    {nil, {"pool": "p"}, nil},
		"a pool and a file, but no kind":     {nil, {"pool": pool, "file": "a"}, nil},
		"a locator for which all is empty":   {nil, {"targetType": "", "nqn": "", "targetAddr": ""}, nil},
		"storage_parameters that have a key": {publish(), {"a": "b"}, {"server": "s", "share": "/x"}},
	} {
		c, err := locate(request.Block, contexts[0], contexts[1], contexts[2])
		names(t, err, "volume pvc-1f0e", "targetType")
		if !errors.Is(err, access.ErrNone) || c.Access != nil {
			t.Errorf("%s: %+v, %v, want ErrNone", name, c.Access, err)
		}
	}
	for words, context := range map[string]kv{
		`"iscsi" is not known`:       {"targetType": "iscsi", "targetAddr": "192.0.2.1"},
		"nqn is missing":             {"targetType": "tcp", "targetAddr": "192.0.2.1"},
		"targetAddr is missing":      {"nqn": nqn},
		"did you mean targetPort":    {"targetType": "tcp", "targetAddr": "192.0.2.1", "targetPrt": "1", "nqn": nqn},
		"clusterID is missing":       {"pool": "p", "imageName": "i"},
		"share is missing":           {"targetType": "nfs", "server": "s"},
		"relative to the pool":       {"targetType": "file", "pool": pool, "file": "../x"},
		`contradict each other`:      {"targetType": "tcp", "trtype": "nfs", "targetAddr": "192.0.2.1", "nqn": nqn},
		"option with a secret":       {"server": "s", "share": "/x", "mountoptions": "hard,password=hunter2"},
		"dhchapCtrlrKey requires":    {"nqn": nqn, "targetAddr": "192.0.2.1", "dhchapCtrlrKey": "a"},
		"reconnectDelay 9 is longer": {"nqn": nqn, "targetAddr": "192.0.2.1", "reconnectDelay": "9", "ctrlLossTmo": "5"},
	} {
		c, err := locate(request.Block, publish(), context, nil)
		names(t, err, words, "volume pvc-1f0e")
		if errors.Is(err, access.ErrNone) || c.Access != nil {
			t.Errorf("%v: %+v, %v, which is no lack of a locator", context, c.Access, err)
		}
	}
}
