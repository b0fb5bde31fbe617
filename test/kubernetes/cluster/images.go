package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/cleatproject/cleat/deploy/image/oci"
)

// BusyboxImage returns an image with a shell and the usual commands, from the
// machine's static busybox.
func BusyboxImage(ctx context.Context, reference string, command ...string) (oci.Image, error) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return oci.Image{}, fmt.Errorf("image %s: %w; install busybox-static", reference, err)
	}
	out, err := exec.CommandContext(ctx, busybox, "--list-full").Output()
	if err != nil {
		return oci.Image{}, fmt.Errorf("image %s: list the commands of busybox: %w", reference, err)
	}
	files := []oci.File{
		{Path: "/bin/busybox", Mode: 0o755, Content: oci.HostFile(busybox)},
		{Path: "/etc/passwd", Mode: 0o644, Content: oci.Text("root:x:0:0:root:/root:/bin/sh\n")},
		{Path: "/etc/group", Mode: 0o644, Content: oci.Text("root:x:0:\n")},
		{Path: "/tmp", Mode: os.ModeDir | os.ModeSticky | 0o777},
		{Path: "/root", Mode: os.ModeDir | 0o700},
	}
	for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
		// linuxrc has no path.
		if name := lines.Text(); strings.HasPrefix(name, "bin/") || strings.HasPrefix(name, "sbin/") || strings.HasPrefix(name, "usr/") {
			if name != "bin/busybox" {
				files = append(files, oci.File{Path: "/" + name, Mode: 0o777, Link: "/bin/busybox"})
			}
		}
	}
	return oci.Image{
		Reference: reference, Layers: []oci.Layer{oci.FileLayer(files...)}, Entrypoint: command,
		Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
	}, nil
}

// ProgramImage returns an image of one static program, its entry point.
func ProgramImage(reference, program string) oci.Image {
	inside := "/" + filepath.Base(program)
	return oci.Image{
		Reference:  reference,
		Entrypoint: []string{inside},
		Layers: []oci.Layer{oci.FileLayer(
			oci.File{Path: inside, Mode: 0o755, Content: oci.HostFile(program)},
			oci.File{Path: "/tmp", Mode: os.ModeDir | os.ModeSticky | 0o777})},
	}
}

// WriteImages writes images to an archive for Import.
func WriteImages(archive string, images ...oci.Image) (err error) {
	f, err := os.Create(archive)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriterSize(f, 1<<20)
	return errors.Join(oci.Write(w, images...), w.Flush())
}

// importBaseImages imports the images that every pod needs.
func (c *Cluster) importBaseImages(ctx context.Context) error {
	pause, err := BusyboxImage(ctx, pauseImage, "/bin/sleep", "2147483647")
	if err != nil {
		return err
	}
	archive := filepath.Join(c.Dir, "own.tar")
	if err := WriteImages(archive, pause); err != nil {
		return err
	}
	return c.Import(ctx, archive)
}
