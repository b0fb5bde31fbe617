package main

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/driver"
	"github.com/cleatproject/cleat/internal/cephconf"
	"github.com/cleatproject/cleat/internal/markdown"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/cephfs"
	"github.com/cleatproject/cleat/node/nvme"
	"github.com/cleatproject/cleat/node/rbd"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

func completed(t *testing.T, flags ...string) (*driver.Process, error) {
	t.Helper()
	return csiProgram().Parse(append([]string{"--node-id=node-1", "--state-dir=" + t.TempDir()}, flags...)...)
}

func TestSettingsOfEngines(t *testing.T) {
	for name, c := range map[string]struct {
		flags string
		want  string // in the error; empty: no error
	}{
		"local":                  {"", ""},
		"unknown":                {"--engine=zfs", "local, ceph, cephfs, none, spdk"},
		"pool of another engine": {"--ceph-pool=rbd", "engine ceph"},
		"ceph node":              {"--engine=ceph --services=node", ""},
		"ceph node, all flags":   {"--engine=ceph --services=node --ceph-cluster=a --ceph-pool=rbd --ceph-secret=/s --ceph-config=/c --node-address=192.0.2.7", ""},
		"local pool":             {"--engine=ceph --services=node --pool=/p", "--pool is a setting of engine local"},
		"topology":               {"--engine=ceph --services=node --topology=zone=a", "all nodes reach"},
		"per node":               {"--engine=ceph --services=node --per-node", "one controller"},
		"name with @":            {"--engine=ceph --services=node --node-id=a@b --node-address=192.0.2.7", "--node-id"},
		"long id":                {"--engine=ceph --services=node --node-address=192.0.2.7 --node-id=" + strings.Repeat("n", 250), "at most 256"},
		"no cluster":             {"--engine=ceph --ceph-pool=rbd --ceph-secret=/s", "--ceph-cluster"},
		"no pool":                {"--engine=ceph --services=controller --ceph-cluster=a --ceph-secret=/s", "--ceph-pool"},
		"no secret":              {"--engine=ceph --services=controller --ceph-cluster=a --ceph-pool=rbd", "--ceph-secret"},
		"pool twice":             {"--engine=ceph --ceph-cluster=a --ceph-secret=/s --ceph-pool=rbd,rbd", "twice"},
		"path of an image":       {"--engine=ceph --ceph-cluster=a --ceph-secret=/s --ceph-pool=rbd/image", "not the name of a pool"},
		"ceph controller":        {"--engine=ceph --services=controller --ceph-cluster=a --ceph-secret=/s --ceph-pool=rbd,fast", ""},
		"cephfs node":            {"--engine=cephfs --services=node", ""},
		"cephfs node, all flags": {"--engine=cephfs --services=node --ceph-cluster=a --cephfs-name=f --ceph-secret=/s --ceph-config=/c --node-address=192.0.2.7", ""},
		"cephfs, pool of RBD":    {"--engine=cephfs --services=node --ceph-pool=rbd", "--ceph-pool is a setting of engine ceph, and this is engine cephfs"},
		"RBD, file system":       {"--engine=ceph --services=node --cephfs-name=f", "--cephfs-name is a setting of engine cephfs"},
		"cephfs, per node":       {"--engine=cephfs --services=node --per-node", "with engine cephfs one controller"},
		"cephfs, topology":       {"--engine=cephfs --services=node --topology=zone=a", "volumes of engine cephfs"},
		"cephfs, no name":        {"--engine=cephfs --services=node --cephfs-name=a/b", "not the name of a file system"},
		"cephfs, no cluster":     {"--engine=cephfs --ceph-secret=/s", "--engine cephfs requires --ceph-cluster"},
		"cephfs, no secret":      {"--engine=cephfs --services=controller --ceph-cluster=a", "--engine cephfs requires --ceph-secret"},
		"cephfs controller":      {"--engine=cephfs --services=controller --ceph-cluster=a --ceph-secret=/s", ""},
		"ceph boots":             {"--engine=ceph --services=node --ceph-boot-leases=storage/cleat-boot --ceph-kubeconfig=/k", ""},
		"cephfs boots":           {"--engine=cephfs --services=node --ceph-boot-leases=storage/cleat-boot", ""},
		"ceph boots, no prefix":  {"--engine=ceph --services=node --ceph-boot-leases=storage", "--ceph-boot-leases: \"storage\" does not have the form NAMESPACE/PREFIX"},
		"ceph boots, node":       {"--engine=ceph --services=node --ceph-boot-leases=storage/b --node-id=Node", "not a valid name of a Lease"},
		"ceph boots, none":       {"--engine=ceph --services=node --ceph-kubeconfig=/k", "--ceph-boot-leases, which is not set"},
		"boots of local":         {"--ceph-boot-leases=storage/b", "--ceph-boot-leases is a setting of engine ceph"},
		"none":                   {"--engine=none", ""},
		"none, all flags":        {"--engine=none --services=node --cluster-id=east --nvme-host-nqn=nqn.2014-08.org.nvmexpress:uuid:0f0e0d0c-0b0a-4908-8706-050403020100 --nvme-key-dir=/k --max-volumes=9", ""},
		"none, controller":       {"--engine=none --services=controller", "only the node service"},
		"none, per node":         {"--engine=none --per-node", "--per-node"},
		"none, topology":         {"--engine=none --topology=zone=a", "nodeAffinity"},
		"none, publish":          {"--engine=none --controller-publish", "attachRequired"},
		"none, fencing":          {"--engine=none --addons-endpoint=unix:///a/b.sock", "at the storage instead"},
		"none, host NQN":         {"--engine=none --nvme-host-nqn=node-1", "--nvme-host-nqn"},
		"keys of another engine": {"--nvme-key-dir=/k", "--nvme-key-dir is a setting of engine"},
		"spdk":                   {"--engine=spdk", ""},
		"spdk, all flags":        {"--engine=spdk --services=all --cluster-id=east --spdk-config=/c --spdk-secret=/s --spdk-state=configmap:storage/cleat-state --node-address=192.0.2.7 --nvme-key-dir=/k", ""},
		"spdk, per node":         {"--engine=spdk --per-node", "one controller"},
		"spdk, topology":         {"--engine=spdk --topology=zone=a", ""},
		"spdk, no label":         {"--engine=spdk --topology=topology.kubernetes.io/zone=", "Kubernetes 1.35"},
		"spdk, no config":        {"--engine=spdk --spdk-config=", "--spdk-config"},
		"spdk, state":            {"--engine=spdk --spdk-state=storage/cleat-state", "configmap:NAMESPACE/NAME"},
		"spdk, state of no name": {"--engine=spdk --spdk-state=configmap:storage/", "configmap:NAMESPACE/NAME"},
		"spdk, long id":          {"--engine=spdk --node-address=192.0.2.7 --node-id=" + strings.Repeat("n", 250), "at most 256"},
		"spdk, host NQN":         {"--engine=spdk --nvme-host-nqn=nqn.2014-08.org.nvmexpress:uuid:0f0e0d0c-0b0a-4908-8706-050403020100", "engine none"},
		"cluster of local":       {"--cluster-id=east", "--cluster-id is a setting of engine"},
		"ceph in one process":    {"--engine=ceph --ceph-cluster=a --ceph-secret=/s --ceph-pool=rbd", ""},
	} {
		want := c.want
		if !cephLinked && strings.Contains(c.flags, "ceph") && !strings.Contains(c.flags, "--services=node") && strings.Contains(c.flags, "--engine") {
			want = "make build-ceph"
		}
		_, err := completed(t, strings.Fields(c.flags)...)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", name, err, want)
		}
	}
}

func TestDeploymentOfEngines(t *testing.T) {
	local := testkit.Value(completed(t))(t)
	if d := local.Deployment; d.MultiNode || d.ControllerPublish || d.Topology[nodeSegment] != "node-1" || len(d.Nodes) != 1 {
		t.Errorf("local: %+v", d)
	}
	for engine, c := range map[string]struct {
		sharedFS, protocol string
		attacher           node.Attacher
	}{
		"ceph":   {"", rbd.Protocol(), &rbd.Attacher{}},
		"cephfs": {"ceph", cephfs.Protocol(), &cephfs.Attacher{}},
	} {
		ceph := testkit.Value(completed(t, "--engine="+engine, "--services=node", "--ceph-cluster=a"))(t)
		want := csi.Deployment{Services: csi.Services{Node: true}, MultiNode: true, ControllerPublish: true, SharedFS: c.sharedFS}
		if diff := cmp.Diff(want, ceph.Deployment); diff != "" {
			t.Errorf("%s (-want +got):\n%s", engine, diff)
		}
		if !ceph.Engine().Fences {
			t.Errorf("%s announces no fencing", engine)
		}
		var config node.Config
		testkit.Must(t, ceph.Engine().Node(t.Context(), ceph, &config))
		if got := config.Attachers[c.protocol]; len(config.Attachers) != 1 || reflect.TypeOf(got) != reflect.TypeOf(c.attacher) {
			t.Errorf("%s: attachers %v", engine, config.Attachers)
		}
	}
}

func TestDeploymentWithoutAnEngine(t *testing.T) {
	none := testkit.Value(completed(t, "--engine=none", "--cluster-id=east"))(t)
	want := csi.Deployment{Services: csi.Services{Node: true}, MultiNode: true, Static: true}
	if diff := cmp.Diff(want, none.Deployment); diff != "" {
		t.Errorf("deployment (-want +got):\n%s", diff)
	}
	if got, want := none.Engine().Describe(), access.HostNQN("east/node-1"); got != want {
		t.Errorf("host NQN %s, want %s", got, want)
	}
	alone := testkit.Value(completed(t, "--engine=none"))(t)
	if got, want := alone.Engine().Describe(), access.HostNQN("node-1"); got != want {
		t.Errorf("host NQN without a cluster %s, want %s", got, want)
	}
	var c node.Config
	testkit.Must(t, none.Engine().Node(t.Context(), none, &c))
	t.Cleanup(func() { testkit.Must(t, none.Close(context.Background())) })
	again := testkit.Value(completed(t, "--engine=none", "--cluster-id=east"))(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	testkit.WantError(t, "a second release with the same host NQN", again.Engine().Node(ctx, again, &c), unix.EADDRINUSE, "csi.nvme.clusterID")
	if _, ok := c.Attachers[nvme.Protocol()].(*nvme.Attacher); !ok || len(c.Attachers) != 1 {
		t.Errorf("attachers %v", c.Attachers)
	}
}

// Keys are rotated while the node service runs.
func TestNodeCredentialsAreReadForEachCall(t *testing.T) {
	dir := t.TempDir()
	read := (&cephCluster{secret: dir}).nodeCredentials()
	for _, want := range []cephconf.Credentials{{User: "csi-node", Key: "a"}, {User: "csi-node.1", Key: "b"}} {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, "userID"), []byte(want.User+"\n"), 0o600))
		testkit.Must(t, os.WriteFile(filepath.Join(dir, "userKey"), []byte(want.Key), 0o600))
		if got := testkit.Value(read())(t); got != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	if (&cephCluster{}).nodeCredentials() != nil {
		t.Error("credentials without --ceph-secret")
	}
}

// The page that compares the engines says what each of them announces. Groups
// of engine ceph depend on the controller's librbd.
func TestEnginesPage(t *testing.T) {
	page := string(testkit.Value(os.ReadFile(filepath.Join(testkit.Root(t), "docs/engines.md")))(t))
	announced := map[string]func(csi.Abilities, driver.Engine) bool{
		"snapshots":                          func(a csi.Abilities, _ driver.Engine) bool { return a.Snapshots },
		"clones":                             func(a csi.Abilities, _ driver.Engine) bool { return a.Clones },
		"group snapshots":                    func(a csi.Abilities, e driver.Engine) bool { return a.Groups || e.Name == engineCeph },
		"changed blocks":                     func(a csi.Abilities, _ driver.Engine) bool { return a.Deltas },
		"changed by a VolumeAttributesClass": func(a csi.Abilities, _ driver.Engine) bool { return a.Modify },
		"health of the stored volume":        func(a csi.Abilities, _ driver.Engine) bool { return a.Health },
		"fences a node by itself":            func(_ csi.Abilities, e driver.Engine) bool { return e.Fences },
	}
	for _, row := range markdown.Rows(page) {
		of := announced[row[""]]
		if of == nil {
			continue
		}
		delete(announced, row[""])
		for _, e := range csiProgram().Engines {
			said := row["`"+e.Name+"`"]
			if want := of(e.Abilities(), e); said == "" || want == strings.HasPrefix(said, "no") {
				t.Errorf("%s of engine %s: the page has %q, the engine announces %t", row[""], e.Name, said, want)
			}
		}
	}
	for row := range announced {
		t.Errorf("the page has no row %q", row)
	}
}

// The table of calls names the engines that serve each optional one.
func TestCallsPage(t *testing.T) {
	page := string(testkit.Value(os.ReadFile(filepath.Join(testkit.Root(t), "docs/calls.md")))(t))
	served := map[string]func(a csi.Abilities, engine string) bool{
		"CreateSnapshot":            func(a csi.Abilities, _ string) bool { return a.Snapshots },
		"CreateVolumeGroupSnapshot": func(a csi.Abilities, engine string) bool { return a.Groups || engine == engineCeph },
		"GetMetadataDelta":          func(a csi.Abilities, _ string) bool { return a.Deltas },
		"ControllerModifyVolume":    func(a csi.Abilities, _ string) bool { return a.Modify },
	}
	for _, row := range markdown.Rows(page) {
		of := served[row["call"]]
		if of == nil {
			continue
		}
		delete(served, row["call"])
		for _, e := range csiProgram().Engines {
			said := row["engines"] == "all" || strings.Contains(row["engines"], "`"+e.Name+"`") != strings.HasPrefix(row["engines"], "all but ")
			if want := of(e.Abilities(), e.Name); said != want {
				t.Errorf("%s: the page has %q, engine %s announces %t", row["call"], row["engines"], e.Name, want)
			}
		}
	}
	for call := range served {
		t.Errorf("the page has no engines of %s", call)
	}
}
