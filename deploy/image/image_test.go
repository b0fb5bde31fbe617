package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/test/testkit"
)

// built is the image that all tests use.
var built struct{ cleat, tar string }

func TestMain(m *testing.M) {
	code := testkit.RunMain(m, func(dir string) error {
		built.cleat, built.tar = filepath.Join(dir, "cleat"), filepath.Join(dir, "image.tar")
		if err := testkit.BuildTo(context.Background(), built.cleat, testkit.Cleat); err != nil {
			return err
		}
		return Build(context.Background(), Options{Output: built.tar, Binary: built.cleat, Log: os.Stderr})
	})
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// opened is an image read through its descriptors, with all digests checked.
type opened struct {
	reference string
	config    v1.Image
	layers    [][]byte
	size      int
}

func open(t *testing.T, name string) opened {
	t.Helper()
	data := testkit.Value(os.ReadFile(name))(t)
	blobs := map[string][]byte{}
	each(t, data, func(h *tar.Header, content []byte) { blobs[h.Name] = content })
	follow := func(d v1.Descriptor) []byte {
		content := blobs["blobs/sha256/"+d.Digest.Encoded()]
		if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != d.Digest.Encoded() || int64(len(content)) != d.Size {
			t.Fatalf("%s: the blob of %v has %d bytes or its digest differs", name, d, len(content))
		}
		return content
	}
	decode := func(content []byte, into any) {
		testkit.Must(t, json.Unmarshal(content, into))
	}
	var index v1.Index
	decode(blobs["index.json"], &index)
	var m v1.Manifest
	decode(follow(index.Manifests[0]), &m)
	o := opened{reference: index.Manifests[0].Annotations["io.containerd.image.name"], size: len(data)}
	decode(follow(m.Config), &o.config)
	for i, l := range m.Layers {
		if o.config.RootFS.DiffIDs[i] != l.Digest {
			t.Errorf("layer %d: got content %[3]s, want %[2]s", i, o.config.RootFS.DiffIDs[i], l.Digest)
		}
		o.layers = append(o.layers, follow(l))
	}
	return o
}

func each(t *testing.T, data []byte, see func(*tar.Header, []byte)) {
	t.Helper()
	for in := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		testkit.Must(t, err)
		content := testkit.Value(io.ReadAll(in))(t)
		see(h, content)
	}
}

// unpacked returns a directory with the image's root.
func unpacked(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	for i, l := range open(t, built.tar).layers {
		file := filepath.Join(t.TempDir(), fmt.Sprint(i))
		testkit.Must(t, errors.Join(os.MkdirAll(root, 0o755), os.WriteFile(file, l, 0o600)))
		if out, err := exec.CommandContext(t.Context(), "tar", "-xf", file, "-C", root).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	return root
}

func TestConfiguration(t *testing.T) {
	got := open(t, built.tar)
	p := testkit.Value(inspect(t.Context(), built.cleat, "", variants()[Default]))(t)
	if want := "cleat.local/cleat:" + p.version; got.reference != want {
		t.Errorf("got name %s, want %s", got.reference, want)
	}
	want := v1.ImageConfig{User: "0", WorkingDir: "/", Entrypoint: []string{"/usr/bin/cleat"}, Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, Labels: got.config.Config.Labels}
	if diff := cmp.Diff(want, got.config.Config); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for key, want := range map[string]string{"title": "cleat", "version": p.version, "revision": p.revision, "licenses": "Apache-2.0"} {
		if label := got.config.Config.Labels["org.opencontainers.image."+key]; label != want {
			t.Errorf("label %s: got %q, want %q", key, label, want)
		}
	}
	if len(got.layers) != 2 || got.config.OS != "linux" || got.config.Architecture != p.architecture {
		t.Errorf("%d layers, %+v", len(got.layers), got.config.Platform)
	}
}

func TestSize(t *testing.T) {
	o := open(t, built.tar)
	t.Logf("%.1f MB in all, packages %.1f MB, cleat %.1f MB", float64(o.size)/1e6, float64(len(o.layers[0]))/1e6, float64(len(o.layers[1]))/1e6)
	if len(o.layers[0]) > 20e6 {
		t.Errorf("the packages' layer has %d bytes: which file does cleat not need?", len(o.layers[0]))
	}
}

// The same input gives the same bytes. The layers do not depend on the time,
// and the packages' layer not on the program.
func TestReproducible(t *testing.T) {
	first := open(t, built.tar)
	o := Options{Output: filepath.Join(t.TempDir(), "new", "image.tar"), Binary: built.cleat}
	testkit.Must(t, Build(t.Context(), o))
	a, errA := os.ReadFile(built.tar)
	b, errB := os.ReadFile(o.Output)
	if err := errors.Join(errA, errB); err != nil || !bytes.Equal(a, b) {
		t.Fatalf("two images of the same input differ (%v)", err)
	}
	other := filepath.Join(t.TempDir(), "cleat")
	program, err := os.ReadFile(built.cleat)
	testkit.Must(t, errors.Join(err, os.WriteFile(other, append(program, "another"...), 0o700)))
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	o.Binary, o.Reference, o.Command, o.Env = other, "registry.example.com:5000/x/plugin:v1", []string{"sriov", "plugin"}, []string{"A=b"}
	testkit.Must(t, Build(t.Context(), o))
	second := open(t, o.Output)
	if !bytes.Equal(first.layers[0], second.layers[0]) || bytes.Equal(first.layers[1], second.layers[1]) {
		t.Error("another program must change only the upper layer")
	}
	if diff := cmp.Diff([]string{"/usr/bin/cleat", "sriov", "plugin"}, second.config.Config.Entrypoint); diff != "" || second.reference != o.Reference || second.config.Config.Env[1] != "A=b" || second.config.Created.Unix() != 1700000000 {
		t.Errorf("got %s created %v%s", second.reference, second.config.Created, diff)
	}
	if names := list(t, filepath.Dir(o.Output)); len(names) != 1 {
		t.Errorf("files other than the image are left: %v", names)
	}
}

func TestBuildRejectsInvalidOptions(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	testkit.Must(t, os.WriteFile(text, []byte("#!/bin/sh\n"), 0o700))
	self := testkit.Value(os.Executable())(t)
	output := filepath.Join(dir, "out")
	for want, o := range map[string]Options{
		"output file is not set":   {Binary: built.cleat},
		"no such file":             {Output: output, Binary: filepath.Join(dir, "absent")},
		"the program for":          {Output: output, Binary: text},
		"want cleat":               {Output: output, Binary: self},
		`reference "cleat:latest"`: {Output: output, Binary: built.cleat, Reference: "cleat:latest"},
		"cleat.local/cleat:":       {Output: dir, Binary: built.cleat, Reference: "cleat.local/cleat:"},
		"unknown variant \"full\"": {Output: output, Binary: built.cleat, Variant: "full"},
		"and -tags ceph,pacific":   {Output: output, Binary: built.cleat, Variant: Ceph},
	} {
		if err := Build(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got error %v", o, err)
		}
	}
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	if err := Build(t.Context(), Options{Output: output, Binary: built.cleat}); err == nil || !strings.Contains(err.Error(), `SOURCE_DATE_EPOCH "yesterday" is not`) {
		t.Errorf("invalid time: got error %v", err)
	}
	if _, err := os.Lstat(output); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file was written: %v", err)
	}
	if _, _, err := Base(t.Context(), Default, "riscv64", "", nil); err == nil || !strings.Contains(err.Error(), "no image for riscv64") {
		t.Errorf("unsupported architecture: got error %v", err)
	}
	release := filepath.Join(dir, "os-release")
	testkit.Must(t, os.WriteFile(release, []byte("ID=debian\nVERSION_CODENAME=trixie\n"), 0o600))
	if err := onDebian(release); err == nil || !strings.Contains(err.Error(), "deploy/image/Dockerfile") {
		t.Errorf("other Debian release: got error %v", err)
	}
}
