//go:build ceph

package ceph

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/testkit"
)

// TestSanity runs the specs of csi-sanity that need no device: those of the
// services Identity and Controller, with the id of a node process.
func TestSanity(t *testing.T) {
	for engine, rig := range engines() {
		t.Run(engine, func(t *testing.T) {
			r := rig(t)
			if r.group != "" { // without fences
				r.authorize("mon", "allow r", "mgr", "allow rw", "osd", "allow rw tag cephfs metadata="+fsName, "mds", "allow rw fsname="+fsName+" path=/volumes/"+r.group)
			}
			r.sanity(t, engine)
		})
	}
}

func (r *rig) sanity(t *testing.T, engine string) {
	suite := filepath.Join(r.dir, "suite")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", suite, ".")
	build.Dir = filepath.Join(testkit.Root(t), "test", "sanity", "suite")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build in test/sanity/suite: %v\n%s", err, out)
	}
	controller := r.controller("one")
	node := driver.Start(t, shared.cleat, r.dir, "node", append([]string{"--services", "node", "--node-id", "node-1", "--node-address", "192.0.2.1"}, r.flags...)...)
	report := filepath.Join(r.dir, "report.json")
	cmd := exec.CommandContext(t.Context(), suite,
		"-endpoint=unix://"+node.Socket, "-controllerendpoint=unix://"+controller.Socket,
		"-mountdir="+filepath.Join(r.dir, "mount"), "-stagingdir="+filepath.Join(r.dir, "staging"),
		"-ginkgo.focus=Controller Service|Identity Service|\\[Controller Server\\]", "-ginkgo.skip=Node Service",
		"-ginkgo.json-report="+report, "-ginkgo.no-color")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("csi-sanity: %v\n%s", err, out)
	}
	count := states(t, report)
	if count["passed"] < 50 || count["failed"]+count["panicked"] > 0 {
		t.Errorf("csi-sanity: %v", count)
	}
	fmt.Printf("REPORT: csi-sanity %s %v\n", engine, count)
	r.becomesEmpty()
}

func states(t *testing.T, report string) map[string]int {
	t.Helper()
	var suites []struct {
		SpecReports []struct{ LeafNodeType, LeafNodeText, State string }
	}
	testkit.Must(t, json.Unmarshal(testkit.Value(os.ReadFile(report))(t), &suites))
	count := map[string]int{}
	for _, s := range suites {
		for _, one := range s.SpecReports {
			if one.LeafNodeType == "It" {
				count[one.State]++
			}
		}
	}
	return count
}

// images lists the pool, and deleted volumes in its trash, as the rbd program
// sees them, or the group of subvolumes as the ceph program does.
func (r *rig) images() (names []string) {
	r.Helper()
	if r.group != "" {
		var all []struct{ Name string }
		testkit.Must(r, json.Unmarshal([]byte(testkit.Value(shared.Command("fs", "subvolume", "ls", fsName, r.group))(r)), &all))
		for _, s := range all {
			names = append(names, s.Name)
		}
		return names
	}
	names = strings.Fields(testkit.Value(shared.RBD("ls", "-p", r.pool))(r))
	for _, field := range strings.Fields(testkit.Value(shared.RBD("trash", "ls", "--all", "-p", r.pool))(r)) {
		if strings.HasPrefix(field, "cleat-del-") {
			names = append(names, field)
		}
	}
	return names
}

// becomesEmpty waits for the removal of deleted images in the background. The
// engine tries an image that a client had open every 30 s.
func (r *rig) becomesEmpty() {
	r.Helper()
	var left []string
	for end := time.Now().Add(150 * time.Second); time.Now().Before(end); time.Sleep(time.Second) {
		if left = r.images(); len(left) == 0 {
			return
		}
	}
	for _, image := range left {
		if r.group != "" {
			out, err := shared.Command("fs", "subvolume", "info", fsName, image, r.group)
			r.Logf("subvolume %s: %s (%v)", image, out, err)
			continue
		}
		for _, query := range [][]string{{"status"}, {"info"}, {"snap", "ls", "--all"}, {"children", "--all", "--descendants"}} {
			out, err := shared.RBD(append(query, r.pool+"/"+image)...)
			r.Logf("rbd %q %s: %s (%v)", query, image, out, err)
		}
	}
	r.Errorf("the images or subvolumes %q are left", left)
}
