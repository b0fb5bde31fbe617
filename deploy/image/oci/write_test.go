package oci

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// entries reads a tar: the contents by name, and the order of names.
func entries(t *testing.T, r io.Reader) (content map[string][]byte, order []string) {
	t.Helper()
	content = map[string][]byte{}
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return content, order
		}
		testkit.Must(t, err)
		data := testkit.Value(io.ReadAll(in))(t)
		if _, twice := content[h.Name]; twice {
			t.Fatalf("%s is in the tar twice", h.Name)
		}
		content[h.Name] = data
		order = append(order, fmt.Sprintf("%s %o %d:%d %d %s", h.Name, h.Mode, h.Uid, h.Gid, h.ModTime.Unix(), h.Linkname))
	}
}

func decode(t *testing.T, data []byte, into any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
}

// at returns the blob of a descriptor, with size and digest checked.
func at(t *testing.T, content map[string][]byte, d v1.Descriptor) []byte {
	t.Helper()
	data, there := content["blobs/sha256/"+d.Digest.Encoded()]
	if !there {
		t.Fatalf("no blob for %v", d)
	}
	if digest.FromBytes(data) != d.Digest || int64(len(data)) != d.Size {
		t.Fatalf("the blob of %v has %d bytes and digest %s", d, len(data), digest.FromBytes(data))
	}
	return data
}

func base() Layer {
	return FileLayer(File{Path: "/usr/bin/tool", Mode: 0o755, Content: Text("program")}, File{Path: "/bin", Link: "usr/bin"},
		File{Path: "/tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777}, File{Path: "/etc/empty", Mode: 0o600})
}

func images() []Image {
	created := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	return []Image{
		{Reference: "cleat.local/a:1", Architecture: "amd64", Layers: []Layer{base(), FileLayer(File{Path: "/a", Mode: 0o644, Content: Text("a")})},
			Entrypoint: []string{"/a"}, Cmd: []string{"b"}, Env: []string{"PATH=/usr/bin"}, User: "0", WorkDir: "/tmp",
			Labels: map[string]string{"x": "1", "y": "2", "z": "3"}, Created: created},
		{Reference: "cleat.local:5000/b/c:v2", Layers: []Layer{base()}, Cmd: []string{"/usr/bin/tool"}},
	}
}

func written(t *testing.T, all ...Image) []byte {
	t.Helper()
	var b bytes.Buffer
	testkit.Must(t, Write(&b, all...))
	return b.Bytes()
}

func TestLayout(t *testing.T) {
	content, order := entries(t, bytes.NewReader(written(t, images()...)))
	if string(content["oci-layout"]) != `{"imageLayoutVersion":"1.0.0"}` {
		t.Errorf("oci-layout is %s", content["oci-layout"])
	}
	var index v1.Index
	decode(t, content["index.json"], &index)
	if len(index.Manifests) != 2 || index.SchemaVersion != 2 || index.MediaType != v1.MediaTypeImageIndex {
		t.Fatalf("%+v", index)
	}
	reached := map[string]bool{"oci-layout": true, "index.json": true, "manifest.json": true, "blobs/": true, "blobs/sha256/": true}
	visit := func(d v1.Descriptor) []byte {
		reached["blobs/sha256/"+d.Digest.Encoded()] = true
		return at(t, content, d)
	}
	var configs []v1.Image
	for _, d := range index.Manifests {
		var m v1.Manifest
		decode(t, visit(d), &m)
		var config v1.Image
		decode(t, visit(m.Config), &config)
		configs = append(configs, config)
		if len(m.Layers) != len(config.RootFS.DiffIDs) || m.Config.MediaType != v1.MediaTypeImageConfig || m.SchemaVersion != 2 || d.MediaType != v1.MediaTypeImageManifest {
			t.Fatalf("manifest %+v, config %+v", m, config)
		}
		for i, l := range m.Layers {
			if digest.FromBytes(visit(l)) != config.RootFS.DiffIDs[i] || l.MediaType != v1.MediaTypeImageLayer {
				t.Errorf("layer %d is %+v, want content %s", i, l, config.RootFS.DiffIDs[i])
			}
		}
	}
	for name := range content {
		if !reached[name] {
			t.Errorf("no descriptor refers to %s", name)
		}
	}
	if len(order) != 5+2*2+2 { // each image has a manifest, a configuration and two layers, one of them shared
		t.Errorf("%d entries: %q", len(order), order)
	}
	want := map[string]string{"io.containerd.image.name": "cleat.local:5000/b/c:v2", "org.opencontainers.image.ref.name": "v2"}
	if diff := cmp.Diff(want, index.Manifests[1].Annotations); diff != "" {
		t.Errorf("annotations (-want +got)\n%s", diff)
	}
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	if diff := cmp.Diff(v1.Image{Created: &created, Platform: v1.Platform{Architecture: "amd64", OS: "linux"}, RootFS: configs[0].RootFS, Config: v1.ImageConfig{
		User: "0", Env: []string{"PATH=/usr/bin"}, Entrypoint: []string{"/a"}, Cmd: []string{"b"}, WorkingDir: "/tmp", Labels: map[string]string{"x": "1", "y": "2", "z": "3"},
	}}, configs[0]); diff != "" {
		t.Errorf("configuration (-want +got)\n%s", diff)
	}
	if configs[1].Created != nil || configs[1].Architecture == "" {
		t.Errorf("configuration %+v", configs[1])
	}
	var docker []dockerEntry
	decode(t, content["manifest.json"], &docker)
	if len(docker) != 2 || len(docker[0].Layers) != 2 || content[docker[0].Layers[1]] == nil || content[docker[1].Config] == nil || docker[1].RepoTags[0] != "cleat.local:5000/b/c:v2" {
		t.Errorf("manifest.json is %+v", docker)
	}
}

func TestReproducible(t *testing.T) {
	first := written(t, images()...)
	for range 20 { // labels come from a map
		if !bytes.Equal(first, written(t, images()...)) {
			t.Fatal("the output is not reproducible")
		}
	}
}

func TestFileLayer(t *testing.T) {
	var b bytes.Buffer
	testkit.Must(t, base().write(&b))
	content, order := entries(t, &b)
	want := []string{"bin 777 0:0 0 usr/bin", "etc/ 755 0:0 0 ", "etc/empty 600 0:0 0 ", "tmp/ 1777 0:0 0 ", "usr/ 755 0:0 0 ", "usr/bin/ 755 0:0 0 ", "usr/bin/tool 755 0:0 0 "}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if string(content["usr/bin/tool"]) != "program" {
		t.Errorf("tool contains %q", content["usr/bin/tool"])
	}
}

// An error has the image's name and the reason.
func TestWriteRejectsInvalidImages(t *testing.T) {
	dir := t.TempDir()
	grows := 0
	change := func(f func(*Image)) []Image {
		i := Image{Reference: "cleat.local/a:1", Layers: []Layer{base()}, Entrypoint: []string{"/a"}}
		f(&i)
		return []Image{i}
	}
	layer := func(files ...File) []Image {
		return change(func(i *Image) { i.Layers = append(i.Layers, FileLayer(files...)) })
	}
	for want, all := range map[string][]Image{
		"no images to write":                     nil,
		"duplicate image":                        append(change(func(*Image) {}), change(func(*Image) {})...),
		`invalid reference "cleat/a:1"`:          change(func(i *Image) { i.Reference = "cleat/a:1" }),
		`invalid reference "cleat.local/a"`:      change(func(i *Image) { i.Reference = "cleat.local/a" }),
		`invalid reference "cleat.local/A:1"`:    change(func(i *Image) { i.Reference = "cleat.local/A:1" }),
		`invalid reference "cleat.local/../a:1"`: change(func(i *Image) { i.Reference = "cleat.local/../a:1" }),
		"no layers":                              change(func(i *Image) { i.Layers = nil }),
		"no entry point and no command":          change(func(i *Image) { i.Entrypoint = nil }),
		`variable "A B=1"`:                       change(func(i *Image) { i.Env = []string{"A B=1"} }),
		`directory "tmp"`:                        change(func(i *Image) { i.WorkDir = "tmp" }),
		"layer 2: file a: the path must":         layer(File{Path: "a"}),
		"file /a/../b: the path must":            layer(File{Path: "/a/../b"}),
		"file /a: duplicate path":                layer(File{Path: "/a"}, File{Path: "/a"}),
		"/a is not a directory":                  layer(File{Path: "/a", Link: "b"}, File{Path: "/a/b"}),
		"link cannot have content":               layer(File{Path: "/a", Link: "b", Content: Text("")}),
		"directory cannot have content":          layer(File{Path: "/a", Mode: fs.ModeDir, Content: Text("")}),
		"regular files, directories":             layer(File{Path: "/a", Mode: fs.ModeSocket}),
		"is not a regular file":                  layer(File{Path: "/a", Content: HostFile(dir)}),
		"its content changed while": layer(File{Path: "/a", Content: func() (io.ReadCloser, int64, error) {
			grows++
			return Text(fmt.Sprint(grows))()
		}}),
		"read 3 bytes, want 4": layer(File{Path: "/a", Content: func() (io.ReadCloser, int64, error) {
			return io.NopCloser(strings.NewReader("abc")), 4, nil
		}}),
	} {
		err := Write(io.Discard, all...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		} else if len(all) == 1 && !strings.Contains(err.Error(), "cleat.local/a:1") && !strings.Contains(want, "invalid reference") && !strings.Contains(want, "its content") {
			t.Errorf("error %v does not have the image's name", err)
		}
	}
}
