package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/dpu/expose"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
)

// snapRig is the double of a SNAP process, with a bdev and a file system device.
type snapRig struct {
	*spdktest.Process
	notes string
}

func newSNAPRig(t *testing.T, c spdktest.Config) *snapRig {
	t.Helper()
	dir, err := os.MkdirTemp("", "snap")
	if err != nil {
		t.Fatal(err)
	}
	c.Socket = filepath.Join(dir, "snap.sock")
	p, err := spdktest.NewNetwork(nil).Start(c)
	if err != nil {
		t.Fatal(err)
	}
	rpc, err := spdk.Open(spdk.Config{Socket: c.Socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(rpc.Close(), p.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	err = errors.Join(
		rpc.Do(t.Context(), "bdev_malloc_create", map[string]any{"name": "bdev0", "num_blocks": 2048, "block_size": 512}),
		rpc.CreateFsdev(t.Context(), "fs0", t.TempDir()),
	)
	if err != nil {
		t.Fatal(err)
	}
	return &snapRig{p, filepath.Join(t.TempDir(), "notes")}
}

// device runs a command of cleat device.
func (r *snapRig) device(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	t.Setenv("CLEAT_SNAP_SOCKET", r.Socket())
	var stdout bytes.Buffer
	c := newRootCommand()
	c.SetArgs(slices.Concat([]string{"device"}, args, []string{"--state-dir", r.notes}))
	c.SetOut(&stdout)
	c.SetErr(&bytes.Buffer{})
	err = c.ExecuteContext(t.Context())
	return stdout.String(), err
}

func (r *snapRig) exposed(t *testing.T, args ...string) (d expose.Exposed) {
	t.Helper()
	out, err := r.device(t, append([]string{"expose", "-o", "json"}, args...)...)
	if err == nil {
		err = json.Unmarshal([]byte(out), &d)
	}
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return d
}

func TestDeviceExposeAndHide(t *testing.T) {
	r := newSNAPRig(t, spdktest.Config{SNAP: true, Flavour: spdktest.Fork})
	const uuid = "6f3a1e2c-0a7b-4c53-9d55-3f9f4f2a1b01"
	given := []string{"bdev0", "--mode", "block", "--pci", "5e:00.2", "--nsid", "3", "--uuid", uuid, "--controller-parameter", "num_queues=4", "--controller-parameter", "write_zeroes=true"}
	d := r.exposed(t, given...)
	if d.PCI != "0000:5e:00.2" || d.NSID != 3 || d.UUID != uuid || d.VUID == "" || d.Controller == "" {
		t.Errorf("%+v", d)
	}
	if again := r.exposed(t, given...); again != d {
		t.Errorf("again: %+v", again)
	}
	for _, c := range r.Calls() {
		if c.Method == "nvme_controller_create" && (!bytes.Contains(c.Params, []byte(`"num_queues":4`)) || !bytes.Contains(c.Params, []byte(`"write_zeroes":true`))) {
			t.Errorf("%s", c.Params)
		}
	}
	out, err := r.device(t, "expose", "bdev0", "--mode", "Block")
	want := "DEVICE        bdev0\nMode          Block\nPCI address   0000:5e:00.2\nVUID          " + d.VUID + "\nController    " + d.Controller +
		"\nNQN           " + d.NQN + "\nNamespace     3\nUUID          " + uuid + "\n"
	if err != nil || out != want {
		t.Errorf("%v\n%s", err, cmp.Diff(want, out))
	}
	f := r.exposed(t, "fs0", "--mode", "filesystem")
	out, err = r.device(t, "expose", "fs0", "--mode", "filesystem", "--vuid", f.VUID)
	want = "DEVICE             fs0\nMode               Filesystem\nPCI address        " + f.PCI + "\nVUID               " + f.VUID + "\nVirtio-fs device   dev_fs0\nTag                fs0tag\n"
	if err != nil || out != want {
		t.Errorf("%v\n%s", err, cmp.Diff(want, out))
	}
	for range 2 {
		if out, err := r.device(t, "hide", "bdev0", "--mode", "block"); err != nil || out != "hidden: bdev0\n" {
			t.Errorf("%q, %v", out, err)
		}
		if out, err := r.device(t, "hide", "fs0", "--mode", "filesystem", "-o", "json"); err != nil || out != "{\n  \"device\": \"fs0\",\n  \"mode\": \"Filesystem\",\n  \"hidden\": true\n}\n" {
			t.Errorf("%q, %v", out, err)
		}
	}
	if again := r.exposed(t, "bdev0", "--mode", "block"); again.VUID == d.VUID || again.NSID != 1 {
		t.Errorf("nothing was hidden: %+v", again)
	}
}

func TestDeviceExposeRefusals(t *testing.T) {
	r := newSNAPRig(t, spdktest.Config{SNAP: true, Flavour: spdktest.Fork})
	plain := newSNAPRig(t, spdktest.Config{Flavour: spdktest.Fork})
	for _, c := range []struct {
		rig  *snapRig
		args []string
		say  string
	}{
		{r, []string{"expose", "bdev0"}, "--mode is missing"},
		{r, []string{"hide", "bdev0"}, "--mode is missing"},
		{r, []string{"expose", "bdev0", "--mode", "disk"}, `--mode "disk" is not known`},
		{r, []string{"expose", "--mode", "block"}, "takes DEVICE"},
		{r, []string{"expose", "bdev0", "--mode", "block", "--controller-parameter", "x"}, `--controller-parameter: "x" is no parameter`},
		{r, []string{"expose", "bdev0", "--mode", "block", "--controller-parameter", "nqn=x"}, "nqn follows from the device"},
		{r, []string{"expose", "bdev0", "--mode", "block", "--pci", "5e:00"}, `"5e:00" is no PCI address`},
		{r, []string{"expose", "bdev0", "--mode", "block", "--pci", "5e:00.2", "--vuid", "V"}, "give one of them"},
		{r, []string{"expose", "bdev0", "--mode", "block", "--uuid", "V"}, `the UUID "V"`},
		{r, []string{"expose", "bdev0", "--mode", "block", "--timeout", "-1s"}, "--timeout -1s is negative"},
		{r, []string{"expose", "fs0", "--mode", "filesystem", "--nsid", "2"}, "has no namespace"},
		{r, []string{"expose", "fs0", "--mode", "filesystem", "--controller-parameter", "num_request_queues=many"}, "a number above 0"},
		{r, []string{"expose", strings.Repeat("f", 18), "--mode", "filesystem"}, "SNAP takes at most 17"},
		{r, []string{"expose", "bdev1", "--mode", "block"}, "expose bdev1: create the namespace: nvme_namespace_create: No such device (code -19)"},
		{r, []string{"expose", "bdev0", "--mode", "block", "--snap-socket", "/a", "--provider-name", "b"}, "give one of them"},
		{r, []string{"expose", "bdev0", "--mode", "block", "--provider-name", "../b"}, "it is the name of one directory"},
		{r, []string{"expose", "bdev0", "--mode", "block", "--provider-name", "no-such"}, "/var/lib/nvidia/storage/snap/providers/no-such/snap.sock: no such file or directory (is SNAP running?"},
		{plain, []string{"expose", "bdev0", "--mode", "block"}, "is no SNAP process"},
		{plain, []string{"hide", "fs0", "--mode", "filesystem"}, "is no SNAP process"},
	} {
		if out, err := c.rig.device(t, c.args...); err == nil || !strings.Contains(err.Error(), c.say) || out != "" {
			t.Errorf("cleat device %s: %v, want an error with %q\n%s", strings.Join(c.args, " "), err, c.say, out)
		}
	}
}
