// Package oci writes container images as one tar file in the OCI image layout
// (github.com/opencontainers/image-spec/image-layout.md), which containerd,
// Podman, skopeo and, by an additional manifest.json, docker load read. The
// output is reproducible.
package oci

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Image is one image for Linux.
type Image struct {
	// Reference is the full name and tag, such as
	// registry.example.com/cleat:0.1.0. Its first part must be a host (with a
	// dot or a port, or localhost): container runtimes take any other for a
	// repository of Docker Hub.
	Reference string
	// Architecture is in Go's terms, such as amd64. Default: this program's.
	Architecture string
	Layers       []Layer // from the bottom up, at least one
	Entrypoint   []string
	Cmd          []string
	Env          []string // KEY=VALUE
	User         string   // default: root
	WorkDir      string   // default: /
	Labels       map[string]string
	Created      time.Time // zero: not set
}

// manifest describes an image whose layers are stored as blobs.
type manifest struct {
	reference string
	config    v1.Descriptor
	manifest  v1.Descriptor
	layers    []v1.Descriptor
}

const (
	hostPart = `(?:localhost|[a-z0-9-]+(?:\.[a-z0-9-]+)+|[a-z0-9-]+(?:\.[a-z0-9-]+)*:[0-9]+)(?::[0-9]+)?`
	pathPart = `[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*`
)

var (
	reference = regexp.MustCompile(`^` + hostPart + `(?:/` + pathPart + `)+:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
	variable  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)
)

// ValidReference returns why a reference is invalid.
func ValidReference(s string) error {
	if len(s) > 255 || !reference.MatchString(s) {
		return fmt.Errorf("invalid reference %q: write HOST/NAME:TAG, the host with a dot or a port, such as registry.example.com/cleat:0.1.0", s)
	}
	return nil
}

func (i Image) validate() error {
	if err := ValidReference(i.Reference); err != nil {
		return err
	}
	if len(i.Layers) == 0 {
		return errors.New("no layers")
	}
	if len(i.Entrypoint)+len(i.Cmd) == 0 {
		return errors.New("no entry point and no command")
	}
	for _, e := range i.Env {
		if !variable.MatchString(e) {
			return fmt.Errorf("variable %q is not KEY=VALUE", e)
		}
	}
	if i.WorkDir != "" && !strings.HasPrefix(i.WorkDir, "/") {
		return fmt.Errorf("working directory %q is not absolute", i.WorkDir)
	}
	return nil
}

// config returns the image's configuration with the digests of its layers.
func (i Image) config(layers []v1.Descriptor) v1.Image {
	c := v1.Image{
		Platform: v1.Platform{Architecture: i.architecture(), OS: "linux"},
		Config:   v1.ImageConfig{User: i.User, Env: i.Env, Entrypoint: i.Entrypoint, Cmd: i.Cmd, WorkingDir: i.WorkDir, Labels: maps.Clone(i.Labels)},
		RootFS:   v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{}},
	}
	if !i.Created.IsZero() {
		created := i.Created.UTC().Truncate(time.Second)
		c.Created = &created
	}
	for _, l := range layers { // not compressed: the blob's digest is the diff ID
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, l.Digest)
	}
	return c
}

func (i Image) architecture() string {
	if i.Architecture != "" {
		return i.Architecture
	}
	return runtime.GOARCH
}

func distinct(images []Image) error {
	if len(images) == 0 {
		return errors.New("no images to write")
	}
	var names []string
	for _, i := range images {
		if slices.Contains(names, i.Reference) {
			return fmt.Errorf("duplicate image %s", i.Reference)
		}
		names = append(names, i.Reference)
	}
	return nil
}
