package plan_test

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

const (
	nqn   = "nqn.2016-06.io.spdk:cnode1"
	host  = "nqn.2014-08.org.nvmexpress:uuid:5d0e6b1c-934f-4a27-b861-2ec4709ad358"
	other = "nqn.2014-08.org.nvmexpress:uuid:a88ad4e0-e383-577f-8051-f0dd5435882a"
	pool  = "0198a6b2-7c1e-7b5e-9d0a-0123456789ab"
	uuid  = "7f3a8f0e-3a5e-4c55-9d4c-50b0d3a4a111"
)

func settings() plan.Settings {
	return plan.Settings{
		Plugin: "storage.example.com", HostNQN: host,
		Timeouts: access.Timeouts{Loss: access.Sec(-1), Delay: access.Sec(2), FastFail: access.Sec(10)},
	}
}

func ask(mode request.Mode, a access.Access, modes ...storagev1.AccessMode) request.Create {
	return request.Create{Volume: "pvc-1f0e", Mode: mode, Modes: modes, Access: a}
}

func monitors() []netip.AddrPort {
	return []netip.AddrPort{netip.MustParseAddrPort("192.0.2.7:3300"), netip.MustParseAddrPort("[2001:db8::7]:0")}
}

// golden is a recorded plan.
type golden struct {
	what    string
	request request.Create
	device  string
	choice  plan.Choice
	objects string
}

func goldens() []golden {
	rox := storagev1.AccessMode_ACCESS_MODE_ROX
	paths := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:4420"), netip.MustParseAddrPort("[2001:db8::1]:4421")}
	ceph := access.Ceph{Monitors: monitors(), User: "dpu", Key: "ceph-dpu"}
	return []golden{
		{
			"NVMe", ask(request.Block, access.NVMe{Transport: "tcp", Paths: paths[:1], NQN: nqn, NSID: 3}), "", plan.Choice{NSID: 3},
			`[{"kind":"nvme-controller","name":"CONTROLLER","controller":{"transport":"tcp","paths":["192.0.2.1:4420"],"subnqn":"` + nqn + `","hostnqn":"` + host + `",` +
				`"timeouts":{"Loss":{"N":-1,"Given":true},"Delay":{"N":2,"Given":true},"FastFail":{"N":10,"Given":true}}}}]`,
		},
		{
			"NVMe with everything", ask(request.Block, access.NVMe{
				Transport: "tcp", Paths: paths, NQN: nqn, UUID: uuid, NGUID: strings.Repeat("0a", 16), HostNQN: other, IOQueues: 4, HeaderDigest: true, DataDigest: true,
				Timeouts: access.Timeouts{Loss: access.Sec(60)}, DHChapKey: "host.dhchap", DHChapCtrlrKey: "target.dhchap", TLSKey: "psk",
			}), "", plan.Choice{UUID: uuid, NGUID: strings.Repeat("0a", 16)},
			`[{"kind":"key","name":"KEY1","key":{"file":"host.dhchap"}},{"kind":"key","name":"KEY2","key":{"file":"target.dhchap"}},{"kind":"key","name":"KEY3","key":{"file":"psk"}},` +
				`{"kind":"nvme-controller","name":"CONTROLLER2","controller":{"transport":"tcp","paths":["192.0.2.1:4420","[2001:db8::1]:4421"],"subnqn":"` + nqn + `","hostnqn":"` + other + `","hostGiven":true,` +
				`"timeouts":{"Loss":{"N":60,"Given":true},"Delay":{"N":2,"Given":true},"FastFail":{"N":10,"Given":true}},"ioQueues":4,"headerDigest":true,"dataDigest":true,` +
				`"dhchap":"KEY1","dhchapCtrlr":"KEY2","tls":"KEY3","tlsFile":"psk"}}]`,
		},
		{
			"AIO", ask(request.Block, access.File{Pool: pool, Name: "images/a"}, rox), "AIO", plan.Choice{},
			`[{"kind":"aio-bdev","name":"AIO","aio":{"file":{"Pool":"` + pool + `","Name":"images/a"},"readOnly":true}}]`,
		},
		{
			"RBD", ask(request.Block, access.RBD{Ceph: access.Ceph{ClusterID: "east"}, Pool: "rbd", Image: "i"}), "RBD", plan.Choice{},
			`[{"kind":"rbd-cluster","name":"CLUSTER1","rbdCluster":{"ClusterID":"east","Monitors":null,"User":"","Key":""}},` +
				`{"kind":"rbd-bdev","name":"RBD","rbd":{"cluster":"CLUSTER1","of":"east","pool":"rbd","image":"i"}}]`,
		},
		{
			"RBD by its monitors", ask(request.Block, access.RBD{Ceph: ceph, Pool: "rbd", Namespace: "team", Image: "i"}, rox), "RBD", plan.Choice{},
			`[{"kind":"rbd-cluster","name":"CLUSTER2","rbdCluster":{"ClusterID":"","Monitors":["192.0.2.7:3300","[2001:db8::7]:0"],"User":"dpu","Key":"ceph-dpu"}},` +
				`{"kind":"rbd-bdev","name":"RBD","rbd":{"cluster":"CLUSTER2","of":"192.0.2.7:3300,[2001:db8::7]:0","pool":"rbd","namespace":"team","image":"i","readOnly":true}}]`,
		},
		{
			"NFS", ask(request.Filesystem, access.NFS{Server: "s", Share: "/x", SubDir: "a", Options: []string{"hard"}}), "FSDEV", plan.Choice{},
			`[{"kind":"mount","name":"pvc-1f0e","mount":{"nfs":{"Server":"s","Share":"/x","SubDir":"a","Options":["hard"]}}},{"kind":"aio-fsdev","name":"FSDEV","fsdev":{"mount":"pvc-1f0e"}}]`,
		},
		{
			"CephFS", ask(request.Filesystem, access.CephFS{Ceph: ceph, FS: "f", Path: "/v"}, rox), "FSDEV", plan.Choice{},
			`[{"kind":"mount","name":"pvc-1f0e","mount":{"cephfs":{"ClusterID":"","Monitors":["192.0.2.7:3300","[2001:db8::7]:0"],"User":"dpu","Key":"ceph-dpu","FS":"f","Path":"/v"},"readOnly":true}},` +
				`{"kind":"aio-fsdev","name":"FSDEV","fsdev":{"mount":"pvc-1f0e"}}]`,
		},
		{
			"a directory", ask(request.Filesystem, access.File{Pool: pool, Name: "trees/a"}), "FSDEV", plan.Choice{},
			`[{"kind":"mount","name":"pvc-1f0e","mount":{"directory":{"Pool":"` + pool + `","Name":"trees/a"}}},{"kind":"aio-fsdev","name":"FSDEV","fsdev":{"mount":"pvc-1f0e"}}]`,
		},
	}
}

// pinned names must NEVER change between releases: a new release would not find
// existing objects, SNAP recovers devices by them, and the node driver keeps
// them.
func pinned(s string) string {
	return strings.NewReplacer(
		"CONTROLLER2", "cleat_nvme_9385cc63abb80e2a", "CONTROLLER", "cleat_nvme_9ab4b89f41d9d6e2", "KEY1", "cleat_key_1fa2a0e08d4c006b", "KEY2", "cleat_key_609fdb81b4811fc0", "KEY3", "cleat_key_9f7936d8668cf65c",
		"AIO", "cleat_aio_870593ee2ad38e66", "RBD", "cleat_rbd_870593ee2ad38e66", "CLUSTER1", "cleat_ceph_1e2282c2fe8667c6", "CLUSTER2", "cleat_ceph_bdb5d622058babb5", "FSDEV", "c870593ee2ad38e66",
	).Replace(s)
}

// TestGolden pins names and the record format: fields, including those of
// package access, can be added, but not removed or renamed.
func TestGolden(t *testing.T) {
	for _, c := range goldens() {
		t.Run(c.what, func(t *testing.T) {
			d := testkit.Value(settings().Make(c.request))(t)
			got := testkit.Value(json.Marshal(d.Objects))(t)
			testkit.Diff(t, "objects", pinned(c.objects), string(got))
			if d.Name != pinned(c.device) || d.Choice != c.choice {
				t.Errorf("device %q, %+v, want %q, %+v", d.Name, d.Choice, pinned(c.device), c.choice)
			}
			if shown := d.Shown(); shown.ID != d.Objects[len(d.Objects)-1].ID || d.Name != "" && d.Name != shown.Name {
				t.Errorf("device %q is shown as %q", d.Name, shown.Name)
			}
		})
	}
}

func TestMakeRefuses(t *testing.T) {
	d, err := settings().Make(ask(request.Block, nil))
	if errs.KindOf(err) != errs.Unsupported || !strings.Contains(err.Error(), "volume pvc-1f0e") || len(d.Objects) != 0 {
		t.Errorf("without a locator: %+v, %v", d, err)
	}
}

// One file for two purposes is one key of SPDK.
func TestOneKeyForTwoPurposes(t *testing.T) {
	d, err := settings().Make(ask(request.Block, access.NVMe{Transport: "tcp", NQN: nqn, DHChapKey: "k", TLSKey: "k"}))
	if err != nil || len(d.Objects) != 2 || d.Objects[1].Controller.DHChap != d.Objects[0].Name || d.Objects[1].Controller.TLS != d.Objects[0].Name {
		t.Errorf("%+v, %v", d, err)
	}
}

// A plan shares no memory with its request.
func TestPlanSharesNothing(t *testing.T) {
	for _, c := range goldens() {
		d := testkit.Value(settings().Make(c.request))(t)
		clone := d.Objects[len(d.Objects)-1].Clone()
		before, _ := json.Marshal(d.Objects)
		switch a := c.request.Access.(type) {
		case access.NVMe:
			a.Paths[0] = netip.AddrPort{}
			clone.Controller.Paths[0], clone.Controller.SubNQN = netip.AddrPort{}, ""
		case access.NFS:
			a.Options[0] = "soft"
		case access.CephFS:
			a.Monitors[0] = netip.AddrPort{}
		case access.RBD:
			if a.Monitors != nil {
				a.Monitors[0] = netip.AddrPort{}
			}
			clone.RBD.Image = ""
		case access.File:
			if clone.AIO != nil {
				clone.AIO.File.Name = ""
			}
		}
		for _, o := range d.Objects {
			m := o.Clone().Mount
			if m == nil {
				continue
			}
			m.ReadOnly = !m.ReadOnly
			if m.NFS != nil {
				m.NFS.Options[0], m.NFS.Server = "soft", ""
			}
			if m.CephFS != nil {
				m.CephFS.Monitors[0], m.CephFS.Path = netip.AddrPort{}, ""
			}
			if m.Directory != nil {
				m.Directory.Name = ""
			}
		}
		if after, _ := json.Marshal(d.Objects); string(after) != string(before) {
			t.Errorf("%s: the plan was\n%s, is\n%s", c.what, before, after)
		}
	}
}

func TestFits(t *testing.T) {
	for _, c := range goldens() {
		d := testkit.Value(settings().Make(c.request))(t)
		for _, o := range d.Objects {
			wrong, empty, two := o, plan.Object{ID: o.ID}, o
			wrong.Kind, two.Key, two.Fsdev = "nonsense", &plan.KeySpec{}, &plan.FsdevSpec{}
			if !o.Fits() || wrong.Fits() || empty.Fits() || two.Fits() {
				t.Errorf("%s: Fits is %t, with another kind %t, with nothing %t, with two %t", o.ID, o.Fits(), wrong.Fits(), empty.Fits(), two.Fits())
			}
		}
	}
}
