package main

import (
	"context"
	"crypto/rand"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/driver"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/nvme"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/kubeapi"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

func TestDeploymentOfSPDK(t *testing.T) {
	d := testkit.Value(completed(t, "--engine=spdk", "--cluster-id=east"))(t)
	want := csi.Deployment{
		Services: csi.Services{Controller: true, Node: true}, ControllerPublish: true, MultiNode: true, StorageGrants: true, PlainNodeIDs: true,
	}
	if diff := cmp.Diff(want, d.Deployment); diff != "" {
		t.Errorf("deployment (-want +got):\n%s", diff)
	}
	if got, want := d.Engine().Describe(), access.HostNQN("east/node-1"); got != want {
		t.Errorf("host NQN %s, want %s", got, want)
	}
	if !d.Engine().Fences {
		t.Error("announces no fencing")
	}
	var c node.Config
	testkit.Must(t, d.Engine().Node(t.Context(), d, &c))
	t.Cleanup(func() { testkit.Must(t, d.Close(context.Background())) })
	if _, ok := c.Attachers[nvme.Protocol()].(*nvme.Attacher); !ok {
		t.Errorf("attachers %v", c.Attachers)
	}
}

// A node of engine spdk reads keys, and refuses a volume whose key it does not
// have before it connects.
func TestKeysOfSPDK(t *testing.T) {
	keys := t.TempDir()
	for flag, want := range map[string]string{"": "set --nvme-key-dir", "--nvme-key-dir=" + keys: "the key gold of the volume"} {
		flags := []string{"--engine=spdk", "--services=node", "--cluster-id=" + rand.Text()}
		if flag != "" {
			flags = append(flags, flag)
		}
		d := testkit.Value(completed(t, flags...))(t)
		var c node.Config
		testkit.Must(t, d.Engine().Node(t.Context(), d, &c))
		t.Cleanup(func() { testkit.Must(t, d.Close(context.Background())) })
		l := access.NVMe{Transport: "tcp", NQN: "nqn.2024-01.example:red", Paths: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:4420")}, DHChapKey: "gold"}
		_, err := c.Attachers[nvme.Protocol()].Attach(testkit.Context(t), node.Target{Locator: l}, node.Use{Block: true})
		testkit.WantError(t, "attach with "+flag, err, errs.Precondition, want)
	}
}

// openSPDK opens the controller service with a target whose process does not
// run.
func openSPDK(t *testing.T, config string, flags ...string) (*driver.Process, volume.Backend, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	testkit.Must(t, os.WriteFile(path, []byte(config), 0o600))
	d := testkit.Value(completed(t, append([]string{"--engine=spdk", "--services=controller", "--spdk-config=" + path}, flags...)...))(t)
	t.Cleanup(func() { testkit.Must(t, d.Close(context.Background())) })
	b, err := d.Engine().Open(t.Context(), d)
	return d, b, err
}

// The controller starts while its targets are down, and reports it.
func TestControllerOfSPDK(t *testing.T) {
	config := "targets:\n"
	for _, name := range []string{"a", "b"} {
		config += "- {name: " + name + ", rpcURL: unix:///nowhere/" + name + ".sock, targetType: nvme-tcp, addresses: [192.0.2.1:4420]}\n"
	}
	d, b, err := openSPDK(t, config)
	testkit.Must(t, err)
	if got := csi.AbilitiesOf(b); got != d.Engine().Abilities() {
		t.Errorf("the backend has %+v, announced are %+v", got, d.Engine().Abilities())
	}
	if !b.MultiNode || b.Granter == nil || b.Fencer == nil {
		t.Errorf("backend %+v", b)
	}
	conditions := testkit.Value(b.Health.StorageHealth(t.Context()))(t)
	var exported int
	for _, family := range testkit.Value(d.Metrics().(prometheus.Gatherer).Gather())(t) {
		if family.GetName() == "cleat_spdk_health" {
			exported = len(family.GetMetric())
		}
	}
	if exported == 0 || exported != len(conditions) {
		t.Errorf("%d conditions in the metrics, want %d", exported, len(conditions))
	}
}

// A controller outside a cluster can keep its state there, too.
func TestStateOfSPDK(t *testing.T) {
	const config = "targets: [{name: a, rpcURL: unix:///nowhere/a.sock, targetType: nvme-tcp, addresses: [192.0.2.1:4420]}]"
	api := kubeapi.New(t, kubeapi.ConfigMaps())
	_, _, err := openSPDK(t, config, "--spdk-state=configmap:cleat-system/state", "--spdk-kubeconfig="+api.Kubeconfig(t))
	testkit.Must(t, err)
	for flags, want := range map[string]string{
		"--spdk-state=configmap:storage/state": "--spdk-kubeconfig",
		"--spdk-kubeconfig=/nowhere":           "--spdk-state",
	} {
		if _, _, err := openSPDK(t, config, flags); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error that names %s", flags, err, want)
		}
	}
}

// Volumes have places if a target has, or the node of the process.
func TestPlacesOfSPDK(t *testing.T) {
	const a = "{name: a, rpcURL: unix:///nowhere/a.sock, targetType: nvme-tcp, addresses: [192.0.2.1:4420]"
	const b = "{name: b, rpcURL: unix:///nowhere/b.sock, targetType: nvme-tcp, addresses: [192.0.2.2:4420]}"
	for config, want := range map[string]bool{
		"targets: [" + a + "}, " + b + "]":                      false,
		"targets: [" + a + ", topology: {zone: a}}, " + b + "]": true,
	} {
		d, _, err := openSPDK(t, config)
		testkit.Must(t, err)
		if d.Deployment.PlacedVolumes != want {
			t.Errorf("%s: placed by topology: %t, want %t", config, d.Deployment.PlacedVolumes, want)
		}
	}
	if d := testkit.Value(completed(t, "--engine=spdk", "--services=node", "--topology=zone=a"))(t); !d.Deployment.PlacedVolumes {
		t.Error("a node with a topology announces none")
	}
}

func TestConfigurationsOfSPDKThatAreRefused(t *testing.T) {
	const entry = "targets: [{name: a, rpcURL: unix:///nowhere/a.sock, targetType: nvme-tcp, addresses: [192.0.2.1:4420]"
	for config, want := range map[string]string{
		"targets: []": "no targets",
		strings.Replace(entry, "unix:///nowhere/a.sock", "http://192.0.2.1:9009", 1) + "}]": "rpcTokens",
	} {
		if _, _, err := openSPDK(t, config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", config, err, want)
		}
	}
}
