package chart

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/cleatproject/cleat/test/testkit"
)

// The gate of group snapshots is what the role allows, with every release of
// csi-snapshotter and snapshot-controller: newer ones have it on.
func TestGroupSnapshotGate(t *testing.T) {
	type gates struct{ sidecar, controller bool }
	for values, both := range map[string]gates{
		perNode + snapshotController:                                          {false, false},
		controllerMode + snapshotController:                                   {true, true},
		cephMode + snapshotController:                                         {false, false},
		spdkMode + snapshotController:                                         {false, false},
		perNode + "snapshotController: {enabled: true, groupSnapshots: true}": {false, true},
		"csi: {enabled: false}\n" + snapshotController:                        {false, false},
	} {
		all := render(t, release{values: values, apis: apis})
		allowed := map[string]bool{}
		for _, r := range of[rbacv1.ClusterRole](all) {
			for _, rule := range r.Rules {
				if slices.Contains(rule.APIGroups, "groupsnapshot.storage.k8s.io") {
					allowed[r.Labels["app.kubernetes.io/component"]] = true
				}
			}
		}
		count := 0
		for _, w := range workloads(all) {
			for _, c := range w.containers() {
				for _, a := range c.Args {
					gate, ok := strings.CutPrefix(a, "--feature-gates=CSIVolumeGroupSnapshot=")
					if !ok {
						continue
					}
					count++
					want, allowed := both.sidecar, allowed[w.labels["app.kubernetes.io/component"]]
					if c.Name == "snapshot-controller" {
						want = both.controller
					}
					if on := gate == "true"; on != want || allowed != want {
						t.Errorf("%s/%s has the gate %s, its role has group snapshots: %t; want %t", w.name, c.Name, gate, allowed, want)
					}
				}
			}
		}
		if want := strings.Count(values, "snapshots: {enabled: true}") + 1; count != want {
			t.Errorf("%d containers have the gate, want %d, with\n%s", count, want, values)
		}
	}
}

// Helm creates the CRDs of a release with snapshot-controller, and no others.
// They have the record by which the chart knows its own, and stay.
func TestSnapshotCRDs(t *testing.T) {
	files := testkit.Value(filepath.Glob("charts/snapshot-crds/crds/*.yaml"))(t)
	if len(files) != 6 {
		t.Errorf("%d files, want those of VolumeSnapshots and of group snapshots", len(files))
	}
	checks := string(read(t, "templates/checks.yaml"))
	for _, file := range files {
		var crd metav1.PartialObjectMetadata
		testkit.Must(t, yaml.Unmarshal(testkit.Value(os.ReadFile(file))(t), &crd))
		if crd.Kind != "CustomResourceDefinition" || crd.Labels["app.kubernetes.io/part-of"] != "cleat" || crd.Annotations["helm.sh/resource-policy"] != "keep" {
			t.Errorf("%s: %s %+v", file, crd.Kind, crd.ObjectMeta)
		}
		if name, ok := strings.CutSuffix(crd.Name, ".storage.k8s.io"); !ok || !strings.Contains(checks, `"`+name+`"`) {
			t.Errorf("checks.yaml does not look for a foreign CRD %s", crd.Name)
		}
	}
	for values, want := range map[string]int{perNode: 0, perNode + snapshotController: 6} {
		out := testkit.Value(release{values: values, apis: apis, crds: true}.helm(t))(t)
		if got := strings.Count(out, "\nkind: CustomResourceDefinition\n"); got != want {
			t.Errorf("%d CRDs, want %d", got, want)
		}
	}
}

// Clients of changed blocks find the Service of the controller, whose sidecar
// accepts their audience.
func TestSnapshotMetadata(t *testing.T) {
	all := render(t, release{values: controllerMode + changedBlocks, apis: apis})
	var published struct {
		Spec struct{ Address, Audience, CACert string }
	}
	for _, o := range all {
		if o.Kind == "SnapshotMetadataService" {
			testkit.Must(t, yaml.Unmarshal([]byte(o.text), &published))
			if o.Name != "csi.cleat.dev" {
				t.Errorf("clients find the driver's name, not %s", o.Name)
			}
		}
	}
	services := of[corev1.Service](all)
	if len(services) != 1 {
		t.Fatalf("%d Services, want one", len(services))
	}
	port := services[0].Spec.Ports[0]
	if want := fmt.Sprintf("%s.storage:%d", services[0].Name, port.Port); published.Spec.Address != want {
		t.Errorf("address %s, want %s", published.Spec.Address, want)
	}
	if want := base64.StdEncoding.EncodeToString([]byte("-----BEGIN CERTIFICATE-----")); published.Spec.CACert != want {
		t.Errorf("certificates %s, want %s", published.Spec.CACert, want)
	}
	found := 0
	for _, w := range workloads(all) {
		for _, c := range w.containers() {
			if c.Name != "csi-snapshot-metadata" {
				continue
			}
			found++
			for _, want := range []string{"--audience=" + published.Spec.Audience, "--port=" + port.TargetPort.String()} {
				if !slices.Contains(c.Args, want) {
					t.Errorf("%s has no %s: %q", w.name, want, c.Args)
				}
			}
		}
	}
	if found != 1 {
		t.Errorf("%d containers, want that of the controller", found)
	}
}
