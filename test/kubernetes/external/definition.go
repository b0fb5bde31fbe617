package external

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"sigs.k8s.io/yaml"
)

// Definition is the suite's description of a driver, in a file of this
// directory named after the chart's release.
type Definition struct {
	Release string
	File    string // path, absolute
	Driver  string
	Claims  map[string]bool // capabilities, by the suite's names
	Sum     string          // of the file
	// Only lists the suites to run; empty: all.
	Only []string
}

// Releases returns the releases of a full run. Release pair, which has a
// definition too, is for specs that need two nodes.
func Releases() []string { return []string{"local", "single", "limited"} }

// Definitions reads the definitions of these releases in dir.
func Definitions(dir string, releases ...string) ([]Definition, error) {
	var all []Definition
	for _, release := range releases {
		if release != "pair" && !slices.Contains(Releases(), release) {
			return nil, fmt.Errorf("no driver definition of release %q: want some of %q", release, Releases())
		}
		file, err := filepath.Abs(filepath.Join(dir, release+".yaml"))
		if err != nil {
			return nil, err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var content struct {
			DriverInfo struct {
				Name         string
				Capabilities map[string]bool
			}
		}
		if err := yaml.Unmarshal(text, &content); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		sum := sha256.Sum256(text)
		d := Definition{Release: release, File: file, Driver: content.DriverInfo.Name, Claims: content.DriverInfo.Capabilities, Sum: hex.EncodeToString(sum[:])}
		if release == "limited" {
			d.Only = []string{"volumeLimits"}
		}
		all = append(all, d)
	}
	return all, nil
}

// Covers reports whether a full run includes the spec.
func (d Definition) Covers(s Spec) bool {
	suite, _ := s.Suite()
	return s.Driver == d.Driver && (len(d.Only) == 0 || slices.Contains(d.Only, suite))
}

// LeftOut returns why the runner leaves out a spec that would not skip itself,
// or "".
func (d Definition) LeftOut(s Spec) string {
	for _, o := range []struct {
		release string // empty: all
		name    *regexp.Regexp
		reason  string
	}{
		{"local", regexp.MustCompile(`^\[Testpattern: Pre-provisioned Snapshot .*\(persistent\)$`),
			"with a snapshotter on each node (`--node-deployment`) who makes a VolumeSnapshotContent by hand has to label it `snapshot.storage.kubernetes.io/managed-by: <node>`, by which each snapshotter chooses its own " +
				"(external-snapshotter v8.7.0, cmd/csi-snapshotter/main.go:162; the snapshot-controller labels only what it makes itself, pkg/common-controller/snapshot_controller.go:769); the suite does not"},
		{"single", regexp.MustCompile(`volume-modify-stress .* multiple pods should modify volumes`),
			"the suite never creates the pods that it makes (Kubernetes v1.37.2, test/e2e/storage/testsuites/volume_modify_stress.go:145-166), so claims of a class that waits for its first consumer are never bound"},
		{"single", regexp.MustCompile(`\] VolumeGroupSnapshottable `),
			"its claims are of 1 MiB whatever the driver says its least size is (Kubernetes v1.37.2, test/e2e/storage/testsuites/volume_group_snapshottable.go:195 and 305), a file system of ours has more, and external-provisioner restores no snapshot into a claim that is smaller than it; `test/kubernetes` restores group snapshots itself"},
		{"", regexp.MustCompile(`^\[Testpattern: Dynamic PV \(default fs\)\] provisioning should provision storage with any volume data source`),
			"it runs images of two more programs, hello-populator and volume-data-source-validator, which are not built here; of the driver it wants a volume as any other"},
		{"", regexp.MustCompile(`\] disruptive .*\[Disruptive\]`), stopsTheKubelet},
		{"", regexp.MustCompile(`should remount stale subpath bind mount`),
			"it unmounts a bind mount of the kubelet's and stops the container with `crictl`, which these nodes do not have; nothing of it reaches the driver"},
	} {
		if (o.release == "" || o.release == d.Release) && o.name.MatchString(s.Name) && !s.foreign() {
			return o.reason
		}
	}
	return ""
}
