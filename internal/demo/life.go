package demo

import (
	"context"
	"fmt"
	"os"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/volume"
)

const (
	volumeSize = 320 * mib // XFS takes no less than 300 MiB
	fileCount  = 12
)

// xfs is how the mounted volumes are used.
func xfs() *client.Capability { return &client.Capability{FSType: "xfs"} }

func create(ctx context.Context, w *walk) (string, error) {
	request := client.CreateRequest{Size: volume.SizeRange{Required: volumeSize}, Capability: xfs()}
	for _, name := range []string{data, logs} {
		request.Name = name
		made, err := w.client.Create(ctx, request)
		if err != nil {
			return "", err
		}
		again, err := w.client.Create(ctx, request)
		if err != nil {
			return "", fmt.Errorf("the same request again: %w", err)
		}
		if made.Size != volumeSize || again.ID != made.ID {
			return "", fmt.Errorf("volume %s has %d bytes, want %d, and the same request again gave %s, want %s", name, made.Size, volumeSize, again.ID, made.ID)
		}
	}
	return fmt.Sprintf("%s and %s, XFS, %s each; asked twice, made once", data, logs, cli.HumanBytes(volumeSize)), nil
}

func attach(ctx context.Context, w *walk) (string, error) {
	for _, name := range []string{data, logs} {
		if err := w.attach(ctx, name); err != nil {
			return "", err
		}
		e, mounted, err := mount.At(ctx, w.target(name))
		if err != nil {
			return "", err
		}
		if !mounted || e.FSType != "xfs" || e.ReadOnly() {
			return "", fmt.Errorf("at %s there should be an XFS that can be written to; mounted is %v, with %+v", w.target(name), mounted, e)
		}
	}
	return "at " + w.target(data) + " and " + logs, nil
}

func write(ctx context.Context, w *walk) (string, error) {
	var total int64
	var err error
	for i, name := range []string{data, logs} {
		if w.files[name], err = writeTree(ctx, w.target(name), byte(i), fileCount, int64(24-8*i)*mib); err != nil {
			return "", err
		}
		total += w.files[name].bytes()
	}
	return fmt.Sprintf("%d files with %s of random data, checksums kept", 2*fileCount, cli.HumanBytes(total)), nil
}

// stats compares what the driver tells with what was written.
func stats(ctx context.Context, w *walk) (string, error) {
	var words string
	for _, name := range []string{logs, data} {
		usage, err := w.client.Stats(ctx, name)
		if err != nil {
			return "", err
		}
		for _, u := range usage {
			switch {
			case u.Unit == "BYTES" && (u.Used < w.files[name].bytes() || u.Total > volumeSize || u.Used+u.Available > u.Total):
				return "", fmt.Errorf("volume %s of %d bytes with files of %d bytes: the driver tells %+v", name, int64(volumeSize), w.files[name].bytes(), u)
			case u.Unit == "INODES" && u.Used < fileCount:
				return "", fmt.Errorf("volume %s with %d files: the driver tells %+v", name, fileCount, u)
			case u.Unit == "BYTES":
				words = fmt.Sprintf("%s: %s of %s used", name, cli.HumanBytes(u.Used), cli.HumanBytes(u.Total))
			case u.Unit == "INODES":
				words += fmt.Sprintf(", %d inodes", u.Used)
			}
		}
		if len(usage) != 2 {
			return "", fmt.Errorf("volume %s: the driver tells %+v, want bytes and inodes", name, usage)
		}
	}
	return words, nil
}

func remove(_ context.Context, w *walk) (string, error) {
	before := len(w.files[data])
	if err := removeAll(w.target(data)); err != nil {
		return "", err
	}
	left, err := os.ReadDir(w.target(data))
	if err != nil {
		return "", err
	}
	if len(left) > 0 {
		return "", fmt.Errorf("%s still holds %d entries", w.target(data), len(left))
	}
	return fmt.Sprintf("%d files are gone from %s", before, data), nil
}
