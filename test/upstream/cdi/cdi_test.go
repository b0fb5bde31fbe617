// Package cdi checks the CDI specifications and annotations of containers with
// CDI's own library, as container runtimes use it.
package cdi

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"pgregory.net/rapid"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/cleatproject/cleat/sriov/inventory"
)

func member(id, driver, uio string) inventory.Member {
	return inventory.Member{Device: inventory.Device{ID: id, Function: &inventory.Function{Address: id, Driver: driver, UIO: uio, IOMMUGroup: "noiommu-3", NUMA: inventory.NoNode}}}
}

// cache reads a directory as a runtime does.
func cache(t *testing.T, dir string) *cdi.Cache {
	t.Helper()
	c, err := cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Refresh(); err != nil {
		t.Fatalf("the directory cannot be read: %v", err)
	}
	for path, errs := range c.GetErrors() {
		t.Errorf("%s: %v", path, errs)
	}
	return c
}

// A container has devices of two resources with the same prefix and type.
// Existing device nodes stand in for a driver's, since the library inspects
// them.
func TestRuntimeInjectsAllocatedDevices(t *testing.T) {
	files := inventory.DeviceFiles{CDI: filepath.Join(t.TempDir(), "cdi")}
	settings := inventory.AllocateSettings{CDI: true}
	first := inventory.Resource{Prefix: "intel.com", Name: "first", Type: inventory.NetDevice, Selectors: []inventory.Selector{{}}}
	second := inventory.Resource{Prefix: "intel.com", Name: "second", Type: inventory.NetDevice, Selectors: []inventory.Selector{{}}}
	members := map[string][]inventory.Member{
		"first":  {member("0000:02:02.0", "igb_uio", "null"), member("0000:02:02.1", "igb_uio", "zero"), member("0000:02:02.2", "iavf", "")},
		"second": {member("0000:02:03.0", "igb_uio", "full"), member("10000:e1:00.0", "vfio-pci", "")},
	}
	var asked []string
	for _, r := range []inventory.Resource{first, second} {
		file, content, err := inventory.CDISpec(r, members[r.Name], settings)
		if err != nil {
			t.Fatal(err)
		}
		if err := files.Write(file, content); err != nil {
			t.Fatal(err)
		}
		answer, err := inventory.Allocate(r, members[r.Name][:1], settings)
		if err != nil {
			t.Fatal(err)
		}
		_, devices, err := cdi.ParseAnnotations(answer.Annotations)
		if err != nil {
			t.Fatal(err)
		}
		key, err := cdi.AnnotationKey(r.Prefix, "net-pci")
		if err != nil {
			t.Fatal(err)
		}
		value, err := cdi.AnnotationValue(devices)
		if err != nil || !maps.Equal(answer.Annotations, map[string]string{key: value}) {
			t.Errorf("annotations %v, %v, want %s=%s as the library writes it", answer.Annotations, err, key, value)
		}
		for _, d := range answer.CdiDevices {
			asked = append(asked, d.Name)
		}
	}
	// A temporary file of a killed writer is not a specification.
	if err := os.WriteFile(filepath.Join(files.CDI, ".cleat-killed.tmp"), []byte("cdiVersion"), 0o600); err != nil {
		t.Fatal(err)
	}

	c := cache(t, files.CDI)
	want := []string{"intel.com/net-pci=0000:02:02.0", "intel.com/net-pci=0000:02:02.1", "intel.com/net-pci=0000:02:03.0", "intel.com/net-pci=10000:e1:00.0"}
	if got := c.ListDevices(); !slices.Equal(got, want) {
		t.Errorf("devices %q, want %q", got, want)
	}
	spec := &oci.Spec{}
	if missing, err := c.InjectDevices(spec, asked...); err != nil {
		t.Fatalf("inject %q: %v, missing %q", asked, err, missing)
	}
	var paths []string
	for _, d := range spec.Linux.Devices {
		paths = append(paths, d.Path)
	}
	slices.Sort(paths)
	if !slices.Equal(paths, []string{"/dev/full", "/dev/null"}) {
		t.Errorf("the container has %q, want /dev/full and /dev/null", paths)
	}
	for _, rule := range spec.Linux.Resources.Devices {
		if !rule.Allow || rule.Access != "rw" {
			t.Errorf("a rule for devices %+v, want rw", rule)
		}
	}

	nodes := c.GetDevice("intel.com/net-pci=10000:e1:00.0").ContainerEdits.DeviceNodes
	if len(nodes) != 2 || nodes[1].HostPath != "/dev/vfio/noiommu-3" || nodes[1].Path != "/dev/vfio/3" {
		t.Errorf("nodes %+v, want the group as noiommu-3 outside and 3 inside", nodes)
	}
}

// For all names: a written specification can be parsed, and the annotation is
// the one that the library writes.
func TestNamesFitTheLibrary(t *testing.T) {
	dir := t.TempDir()
	name := rapid.OneOf(rapid.StringMatching(`[a-zA-Z0-9._:-]{0,12}`), rapid.StringN(0, 12, -1), rapid.StringMatching(`[a-z]{50,70}`))
	rapid.Check(t, func(r *rapid.T) {
		resource := inventory.Resource{Prefix: name.Draw(r, "prefix"), Name: name.Draw(r, "name"), Type: rapid.SampledFrom(inventory.DeviceTypes()).Draw(r, "type"), Selectors: []inventory.Selector{{}}}
		m := member(name.Draw(r, "id"), "vfio-pci", "")
		file, content, err := inventory.CDISpec(resource, []inventory.Member{m}, inventory.AllocateSettings{})
		if err == nil && content != nil {
			if strings.Contains(file, "/") {
				r.Fatalf("file %q", file)
			}
			path := filepath.Join(dir, "spec.yaml")
			if err := os.WriteFile(path, content, 0o600); err != nil {
				r.Fatal(err)
			}
			if _, err := cdi.ReadSpec(path, 0); err != nil {
				r.Fatalf("the library refuses\n%s: %v", content, err)
			}
		}
		answer, errAllocate := inventory.Allocate(resource, []inventory.Member{m}, inventory.AllocateSettings{CDI: true})
		if (errAllocate == nil) != (err == nil && content != nil) && !strings.Contains(resource.Name, ":") && file != "" {
			r.Fatalf("Allocate: %v, CDISpec: %v with %q, want both or neither", errAllocate, err, content)
		}
		if errAllocate != nil {
			return
		}
		_, class, _ := strings.Cut(strings.SplitN(answer.CdiDevices[0].Name, "=", 2)[0], "/")
		key, err := cdi.AnnotationKey(resource.Prefix, class)
		if err != nil {
			r.Fatalf("the library refuses the annotation for %q: %v", resource.Prefix, err)
		}
		value, err := cdi.AnnotationValue([]string{answer.CdiDevices[0].Name})
		if err != nil || answer.Annotations[key] != value {
			r.Fatalf("annotations %v, %v, want %s=%s", answer.Annotations, err, key, value)
		}
	})
}
