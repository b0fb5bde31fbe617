// Package image builds cleat's container images: cleat, the programs that it
// runs with their libraries, and nothing else of Debian 12; for the controller of
// Ceph volumes Ceph's libraries of a newer Debian release. Packages are
// downloaded by apt and unpacked, not installed; no registry is used. The build
// is reproducible.
package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cleatproject/cleat/deploy/image/oci"
)

// Program is the path of cleat in the image.
const Program = "/usr/bin/cleat"

// Options configure Build.
type Options struct {
	Output    string // output file, a tar in OCI layout
	Variant   Variant
	Reference string // full name and tag; default cleat.local/NAME: with the program's version
	Binary    string // cleat, static or linked as the variant needs it; determines the image's architecture
	Source    string // directory of cleat's module, for version and licences; default the current one
	Cache     string // package cache; default DefaultCache
	// Command is the subcommand of the entry point, such as [sriov plugin], for
	// images that are run with flags only. Empty: the arguments start with the
	// subcommand.
	Command []string
	Env     []string  // KEY=VALUE, in addition to PATH
	Log     io.Writer // progress; nil: none
}

// Build builds and writes the image.
func Build(ctx context.Context, o Options) error {
	if o.Output == "" {
		return errors.New("the output file is not set")
	}
	of, err := o.Variant.contents()
	if err != nil {
		return err
	}
	binary, err := inspect(ctx, o.Binary, o.Source, of)
	if err != nil {
		return err
	}
	if o.Reference == "" {
		o.Reference = "cleat.local/" + of.name + ":" + binary.version
	}
	if err := oci.ValidReference(o.Reference); err != nil {
		return err
	}
	log := logger(o.Log)
	base, packages, err := Base(ctx, o.Variant, binary.architecture, o.Cache, o.Log)
	if err != nil {
		return err
	}
	own, err := Own(ctx, o.Variant, o.Binary, o.Source)
	if err != nil {
		return err
	}
	created, err := createdAt(os.Getenv("SOURCE_DATE_EPOCH"), binary.committed)
	if err != nil {
		return err
	}
	made := oci.Image{
		Reference: o.Reference, Architecture: binary.architecture, Layers: []oci.Layer{oci.FileLayer(base...), oci.FileLayer(own...)}, User: "0", WorkDir: "/",
		Entrypoint: append([]string{Program}, o.Command...), Env: append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, o.Env...),
		Labels: labels(binary, of), Created: created,
	}
	size, err := write(o.Output, made)
	if err != nil {
		return fmt.Errorf("write %s: %w", o.Output, err)
	}
	log("%s: %s, %.1f MB, of cleat %s and %d Debian packages", o.Output, o.Reference, float64(size)/1e6, binary.version, len(packages))
	return nil
}

// Base returns the lower layer for an architecture in Go's terms, and its
// packages as name=version. An empty cache is DefaultCache.
func Base(ctx context.Context, v Variant, architecture, cache string, to io.Writer) ([]oci.File, []string, error) {
	of, err := v.contents()
	if err != nil {
		return nil, nil, err
	}
	if !slices.Contains([]string{"amd64", "arm64"}, architecture) {
		return nil, nil, fmt.Errorf("no image for %s: only amd64 and arm64 are supported", architecture)
	}
	if err := onDebian("/etc/os-release"); err != nil {
		return nil, nil, err
	}
	if cache == "" {
		if cache, err = DefaultCache(); err != nil {
			return nil, nil, err
		}
	}
	names, err := parsePackages(of.packages)
	if err != nil {
		return nil, nil, err
	}
	dir, archives, err := fetch(ctx, cache, architecture, of.release, names, logger(to))
	if err != nil {
		return nil, nil, err
	}
	all, described, err := unpack(ctx, dir, archives)
	if err != nil {
		return nil, nil, err
	}
	c, err := choose(all, names, of)
	if err != nil {
		return nil, nil, err
	}
	described = slices.DeleteFunc(described, func(s stanza) bool { return !c.uses(s.name) })
	var versions []string
	for _, s := range described {
		versions = append(versions, s.name+"="+s.version)
	}
	return append(c.files(), root(described)...), versions, nil
}

// Own returns the upper layer: cleat, and the licences of its modules.
func Own(ctx context.Context, v Variant, binary, source string) ([]oci.File, error) {
	of, err := v.contents()
	if err != nil {
		return nil, err
	}
	files, err := licences(ctx, source, of)
	if err != nil {
		return nil, err
	}
	if of.samples {
		for _, name := range samplePlugins() {
			files = append(files, oci.File{Path: "/" + name, Link: Program[1:]})
		}
	}
	return append(files, oci.File{Path: Program, Mode: 0o755, Content: oci.HostFile(binary)}), nil
}

// samplePlugins returns the paths by which NVIDIA's chart runs the plugin of a
// storage vendor's image; cleat knows these names.
func samplePlugins() []string {
	return []string{"block-storage-vendor-dpu-plugin", "fs-storage-vendor-dpu-plugin", "nfs-storage-vendor-dpu-plugin", "storage-vendor-dpu-plugin"}
}

// machineRelease is Debian's name of the release of the machine, Debian 12.
const machineRelease = "bookworm"

// onDebian returns an error unless the machine runs Debian 12, whose packages
// the image needs.
func onDebian(release string) error {
	data, err := os.ReadFile(release)
	if err != nil {
		return fmt.Errorf("read os-release: %w", err)
	}
	lines := strings.Split(string(data), "\n")
	if slices.Contains(lines, "ID=debian") && slices.Contains(lines, "VERSION_CODENAME="+machineRelease) {
		return nil
	}
	return errors.New("the image is built from packages of Debian 12, but this machine runs another system: build deploy/image/Dockerfile instead")
}

// createdAt returns the time of the image: SOURCE_DATE_EPOCH, else the commit's
// time.
func createdAt(epoch string, committed time.Time) (time.Time, error) {
	if epoch == "" {
		return committed, nil
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil || seconds < 0 {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH %q is not a number of seconds since 1970", epoch)
	}
	return time.Unix(seconds, 0), nil
}

func labels(p program, of contents) map[string]string {
	all := map[string]string{
		"org.opencontainers.image.title":       of.name,
		"org.opencontainers.image.description": of.description,
		"org.opencontainers.image.version":     p.version,
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"dev.cleat.image.base":                 "Debian " + cmp.Or(of.release, "12"),
	}
	if p.revision != "" {
		all["org.opencontainers.image.revision"] = p.revision
	}
	return all
}

// write writes the file under a hidden name and renames it.
func write(name string, made oci.Image) (int64, error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return 0, err
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".image-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	err = errors.Join(f.Chmod(0o644), oci.Write(f, made))
	info, statErr := f.Stat()
	if err := errors.Join(err, statErr, f.Close()); err != nil {
		return 0, err
	}
	return info.Size(), os.Rename(f.Name(), name)
}

func logger(to io.Writer) func(format string, args ...any) {
	return func(format string, args ...any) {
		if to != nil {
			fmt.Fprintf(to, "cleat: "+format+"\n", args...)
		}
	}
}
