package newvolume

import (
	"errors"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

const mib = 1 << 20

func TestSize(t *testing.T) {
	source := &Origin[string]{Size: 64 * mib}
	for _, c := range []struct {
		req  volume.SizeRange
		fs   string
		from *Origin[string]
		want int64 // 0: OutOfRange
	}{
		{volume.SizeRange{}, "", nil, defaultSize}, {volume.SizeRange{Required: 1}, "", nil, mib}, {volume.SizeRange{Required: mib + 1}, "", nil, 2 * mib},
		{volume.SizeRange{Required: 1}, "xfs", nil, 300 << 20}, {volume.SizeRange{Limit: mib - 1}, "", nil, 0},
		{volume.SizeRange{}, "", source, 64 * mib}, {volume.SizeRange{Required: 65 * mib}, "", source, 65 * mib}, {volume.SizeRange{Limit: 63 * mib}, "", source, 0},
	} {
		got, err := Size(c.req, c.fs, c.from, mib)
		if got != c.want || (err != nil) != (c.want == 0) || err != nil && errs.KindOf(err) != errs.OutOfRange {
			t.Errorf("%s, %q, %v: %d, %v; want %d", c.req, c.fs, c.from, got, err, c.want)
		}
	}
}

// Two file systems with one UUID can damage each other on a node: the kernel
// regards them as one.
func TestCopiesOfBtrfs(t *testing.T) {
	source := &Origin[string]{Content: volume.Filesystem, FSType: "btrfs"}
	for content, refused := range map[volume.Content]bool{volume.Filesystem: true, volume.Raw: false} {
		if _, err := FSType(volume.CreateRequest{Content: content}, source); errors.Is(err, errs.Invalid) != refused {
			t.Errorf("a copy with content %s: %v; want Invalid %t", content, err, refused)
		}
	}
	if fs, err := FSType(volume.CreateRequest{Content: volume.Filesystem, FSType: "btrfs"}, (*Origin[string])(nil)); fs != "btrfs" || err != nil {
		t.Errorf("a new volume: %q, %v", fs, err)
	}
}

// The error names the difference from the existing volume.
func TestMatches(t *testing.T) {
	have := volume.Volume{ID: "vol-1", Size: 1 << 30, Content: volume.Raw, Source: volume.Source{Volume: "vol-0"}}
	parameters := map[string]string{"a": "1", "b": "2"}
	for want, change := range map[string]func(*volume.CreateRequest){
		"": func(r *volume.CreateRequest) {},
		"with 1073741824 bytes; the request is for at least 2147483648 bytes":       func(r *volume.CreateRequest) { r.Size.Required = 2 << 30 },
		"with 1073741824 bytes; the request is for at most 1048576 bytes":           func(r *volume.CreateRequest) { r.Size.Limit = 1 << 20 },
		"with 1073741824 bytes; the request is for exactly 4096 bytes":              func(r *volume.CreateRequest) { r.Size = volume.SizeRange{Required: 4096, Limit: 4096} },
		"with content raw; the request is for filesystem":                           func(r *volume.CreateRequest) { r.Content = volume.Filesystem },
		"cloned from volume vol-0; the request is for one restored from snapshot s": func(r *volume.CreateRequest) { r.Source = volume.Source{Snapshot: "s"} },
		`with parameters a="1", b="2"; the request has no parameters`:               func(r *volume.CreateRequest) { r.Parameters = nil },
		"and only one of the two is ephemeral":                                      func(r *volume.CreateRequest) { r.Ephemeral = true },
	} {
		req := volume.CreateRequest{Name: "pvc-1", Content: have.Content, Source: have.Source, Parameters: parameters}
		change(&req)
		err := Matches(req, have, parameters)
		if want == "" && err != nil || want != "" && (!errors.Is(err, errs.Exists) || !strings.HasSuffix(err.Error(), `volume vol-1 already has the name "pvc-1", `+want)) {
			t.Errorf("%v, want Exists with %q at the end", err, want)
		}
	}
}
