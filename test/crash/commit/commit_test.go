// Package commit tests internal/store on a disk whose writes and flushes fail,
// and which then loses its power.
package commit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/test/crash/workload"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/scratchfs"
	"github.com/cleatproject/cleat/test/vm/disk"
	"github.com/cleatproject/cleat/test/vm/disk/fusefile"
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	goleak.VerifyTestMain(m)
}

const workerPackage = "./test/crash/commit/worker"

// faults of the disk. A store's meta pages are the first two.
var faults = []struct {
	name string
	make func(*rig) disk.Fault
}{
	{"meta pages", func(r *rig) disk.Fault {
		at := r.metaPages()
		return disk.Fault{Writes: true, From: at, To: at + 2*int64(os.Getpagesize())}
	}},
	{"each seventh write", func(*rig) disk.Fault { return disk.Fault{Writes: true, Every: 7} }},
	{"each third flush", func(*rig) disk.Fault { return disk.Fault{Flushes: true, Every: 3} }},
}

func TestFailedCommits(t *testing.T) {
	program := testkit.Build(t, workerPackage)
	for _, fstype := range []string{"ext4", "xfs", "btrfs"} {
		for _, f := range faults {
			t.Run(fstype+"/"+f.name, func(t *testing.T) {
				r := newRig(t, fstype, program)
				if err := r.run(f.make(r)); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A View that began before a failed commit reads no page of a later one.
func TestViewsOfFailedCommits(t *testing.T) {
	if err := viewOfFailedCommit(newRig(t, "ext4", testkit.Build(t, workerPackage))); err != nil {
		t.Error(err)
	}
}

func viewOfFailedCommit(r *rig) error {
	for range 2 * 20 { // pages are free, and each put frees some
		testkit.Must(r, r.put())
	}
	testkit.Must(r, r.do("hold"))
	restore := r.disk.Fail(faults[0].make(r))
	if r.put() == nil {
		r.Fatal("no commit failed")
	}
	restore()
	for range 3 {
		_ = r.put() // can wait for the View
	}
	if err := r.do("release"); err != nil {
		return err
	}
	if err := r.put(); err != nil {
		return fmt.Errorf("after the View: %w", err)
	}
	answered, wrong := r.list()
	return errors.Join(answered, wrong)
}

// The test must fail for builds that go on after a failed commit, or with
// blocks that are preallocated but not written.
func TestSabotageTurnsRed(t *testing.T) {
	for _, s := range []struct {
		name string
		test func(*rig) error
		left []workload.Replacement
	}{
		{"a failed commit is not written again", func(r *rig) error { return r.run(faults[0].make(r)) }, []workload.Replacement{
			{File: "internal/store/confirm.go", Old: "newest == s.durable.Load() &&", New: "newest >= 0 &&"},
		}},
		{"no wait for Views", viewOfFailedCommit, []workload.Replacement{
			{File: "internal/store/views.go", Old: "if earlier == nil {", New: "if true {"},
		}},
		{"preallocated blocks are not written", func(r *rig) error { return r.run(faults[1].make(r)) }, []workload.Replacement{
			{File: "internal/store/file.go", Old: "for at := from + int64(len(data)); at < to;", New: "for at := to; at < to;"},
			{File: "internal/store/file.go", Old: "return end >= info.Size(), nil", New: "return end >= 0, nil"},
			{File: "internal/store/file.go", Old: "case e.Hole() || int64(e.Logical) > end:", New: "case false:"},
		}},
	} {
		t.Run(s.name, func(t *testing.T) {
			program := testkit.Build(t, workerPackage, workload.Overlay(t, s.left...))
			for range 40 {
				r := newRig(t, "ext4", program)
				if err := s.test(r); err != nil {
					t.Log("failed, as expected:", err)
					return
				}
			}
			t.Error("this build passed the test")
		})
	}
}

type rig struct {
	*testing.T
	fstype, program string
	disk            *disk.Disk
	image, dir      string

	worker *exec.Cmd
	in     io.Writer
	out    *bufio.Scanner
	next   int
	// evidence has the records that the store has said to have, or not to have.
	evidence map[int]bool
}

func newRig(t *testing.T, fstype, program string) *rig {
	r := newDisk(t, fstype)
	r.program = program
	t.Cleanup(func() { r.kill() })
	testkit.Must(t, r.start())
	for range 3 {
		testkit.Must(t, r.put())
	}
	return r
}

// newDisk mounts a file system on a disk that fails on demand.
func newDisk(t *testing.T, fstype string) *rig {
	r := &rig{T: t, fstype: fstype, dir: t.TempDir(), evidence: map[int]bool{}}
	r.disk = testkit.Open(disk.Open(disk.Spec{
		Path: filepath.Join(t.TempDir(), "medium"), Size: scratchfs.Size, Cache: scratchfs.Size, Survival: disk.SurviveNone,
	}))(t)
	r.image = fusefile.Serve(t, r.disk)
	flags := map[string][]string{"ext4": {"-b", "4096"}, "xfs": {"-s", "size=4096"}}[fstype]
	scratchfs.Make(t, fstype, append(append([]string{"-q"}, flags...), r.image)...)
	scratchfs.MountImage(t, fstype, r.image, r.dir)
	t.Cleanup(func() { testkit.Unmount(t, r.dir) })
	return r
}

func (r *rig) path() string { return filepath.Join(r.dir, "a.db") }

// metaPages returns where they are on the disk. FIEMAP of btrfs gives other
// addresses.
func (r *rig) metaPages() int64 {
	pages := testkit.Value(os.ReadFile(r.path()))(r)[:2*os.Getpagesize()]
	image := testkit.Value(os.Open(r.image))(r)
	defer image.Close()
	b := make([]byte, len(pages))
	for at := int64(0); ; at += int64(os.Getpagesize()) {
		if _, err := image.ReadAt(b, at); err != nil {
			r.Fatal("the meta pages are not on the disk: ", err)
		}
		if bytes.Equal(b, pages) {
			return at
		}
	}
}

func (r *rig) start() error {
	r.worker = exec.Command(r.program, r.path())
	r.worker.Stderr = os.Stderr
	r.in = testkit.Value(r.worker.StdinPipe())(r)
	r.out = bufio.NewScanner(testkit.Value(r.worker.StdoutPipe())(r))
	testkit.Must(r, r.worker.Start())
	_, err := r.read()
	return err
}

func (r *rig) kill() {
	_ = r.worker.Process.Kill()
	_ = r.worker.Wait()
}

func (r *rig) read() (keys []string, err error) {
	if !r.out.Scan() {
		return nil, fmt.Errorf("the worker died: %v", r.out.Err())
	}
	words := strings.Fields(r.out.Text())
	if words[0] != "ok" {
		return nil, fmt.Errorf("%s", r.out.Text())
	}
	return words[1:], nil
}

func (r *rig) do(command string) error {
	fmt.Fprintln(r.in, command)
	_, err := r.read()
	return err
}

func (r *rig) put() error {
	n := r.next
	r.next++
	err := r.do(strconv.Itoa(n))
	if err == nil {
		r.evidence[n] = true
		delete(r.evidence, n-20)
		r.evidence[n-20] = false
	} else {
		delete(r.evidence, n-20) // perhaps deleted
	}
	return err
}

// list checks the records against what is known, and adds to it. Without an
// answer there is nothing to check.
func (r *rig) list() (answered, wrong error) {
	fmt.Fprintln(r.in, "list")
	keys, err := r.read()
	if err != nil {
		return err, nil
	}
	found := map[int]bool{}
	for _, key := range keys {
		found[testkit.Value(strconv.Atoi(key))(r)] = true
	}
	for n, want := range r.evidence {
		if n >= 0 && found[n] != want {
			return nil, fmt.Errorf("record %d exists: %v; the store had said %v", n, found[n], want)
		}
	}
	for n := range r.next {
		r.evidence[n] = found[n]
	}
	return nil, nil
}

// run loses power on a disk that fails, and on one that works again.
func (r *rig) run(fault disk.Fault) error {
	for _, repaired := range []bool{false, true} {
		restore := r.disk.Fail(fault)
		failed := 0
		for i := range 60 {
			if r.put() != nil {
				failed++
			}
			if i%4 == 3 {
				if _, wrong := r.list(); wrong != nil {
					return wrong
				}
			}
			if i%20 == 10 { // its successor has the same page cache
				r.kill()
				_ = r.start()
			}
		}
		if failed == 0 {
			r.Fatal("no commit failed")
		}
		if repaired {
			restore()
			if err := r.goOn(fault); err != nil {
				return err
			}
		}
		if err := r.losePower(restore); err != nil {
			return fmt.Errorf("after %d failed commits and a power loss, disk repaired before: %v: %w", failed, repaired, err)
		}
	}
	return nil
}

// goOn changes the store on a disk that works again. The file system has perhaps
// stopped, but not when only the store's own pages failed.
func (r *rig) goOn(fault disk.Fault) error {
	put := r.put()
	if put != nil {
		r.kill()
		if put = r.start(); put == nil {
			put = r.put()
		}
	}
	answered, wrong := r.list()
	if err := errors.Join(put, answered); err != nil && fault.To != 0 {
		return fmt.Errorf("after the disk works again: %w", err)
	}
	return wrong
}

// losePower also checks that all that is known survives.
func (r *rig) losePower(restore func()) error {
	testkit.Must(r, r.disk.LosePower())
	r.kill()
	restore()
	r.restart()
	if err := r.start(); err != nil {
		return err
	}
	answered, wrong := r.list()
	if answered != nil {
		return answered
	}
	return wrong
}
