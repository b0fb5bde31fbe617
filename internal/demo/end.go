package demo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/linux/retry"
)

// detach takes all volumes away from where they are, and looks whether the
// kernel holds anything but the pool.
func detach(ctx context.Context, w *walk) (string, error) {
	n, err := detachAll(ctx, w.client)
	if err != nil {
		return "", err
	}
	if err := w.onlyPool(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d volumes; no mount and no loop device of theirs is left", n), nil
}

// onlyPool wants no mount below the walk's directory and no loop device on a
// file there, but for the pool's own.
func (w *walk) onlyPool(ctx context.Context) error {
	things, err := left(ctx, w.dir)
	if err != nil {
		return err
	}
	things = slices.DeleteFunc(things, func(t thing) bool { return t.path == w.pool() || strings.HasPrefix(t.path, w.pool()+".") })
	if len(things) > 0 {
		return fmt.Errorf("all volumes are detached, and the kernel still holds %v", things)
	}
	return nil
}

// detachAll returns how many volumes were attached.
func detachAll(ctx context.Context, driver *client.Driver) (n int, err error) {
	volumes, err := driver.List(ctx)
	if err != nil {
		return 0, err
	}
	for _, v := range volumes {
		if len(v.Targets) == 0 && v.Staging == "" {
			continue
		}
		n++
		if err := detachFrom(ctx, driver, v.Name); err != nil {
			return n, err
		}
	}
	return n, nil
}

func deleteAll(ctx context.Context, w *walk) (string, error) {
	if err := w.client.DeleteGroup(ctx, groupName); err != nil {
		return "", err
	}
	snapshots, err := w.client.Snapshots(ctx, "")
	if err != nil {
		return "", err
	}
	for _, s := range snapshots {
		if err := w.client.DeleteSnapshot(ctx, s.Name); err != nil {
			return "", err
		}
	}
	volumes, err := w.client.List(ctx)
	if err != nil {
		return "", err
	}
	for _, v := range volumes {
		if err := w.client.Delete(ctx, v.Name); err != nil {
			return "", err
		}
	}
	if err := w.checkEmpty(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d volumes, %d snapshots, 1 group; %s are free again", len(volumes), len(snapshots), cli.HumanBytes(w.free)), nil
}

// checkEmpty wants empty lists, and the room of the beginning.
func (w *walk) checkEmpty(ctx context.Context) error {
	volumes, err := w.client.List(ctx)
	if err != nil {
		return err
	}
	snapshots, err := w.client.Snapshots(ctx, "")
	if err != nil {
		return err
	}
	if len(volumes)+len(snapshots) > 0 {
		return fmt.Errorf("all is deleted, and the driver lists %+v and %+v", volumes, snapshots)
	}
	const slack = 8 * mib // the pool's own books
	return retry.For(ctx, 10*time.Second, func() (bool, error) {
		now, err := w.client.Capacity(ctx, *xfs(), thick())
		if err == nil && now.Available < w.free-slack {
			return true, fmt.Errorf("all is deleted, and the pool has room for %d bytes where it had %d", now.Available, w.free)
		}
		return false, err
	})
}

func stop(ctx context.Context, w *walk) (string, error) {
	if err := w.client.Close(); err != nil {
		return "", err
	}
	if err := w.driver.stop(); err != nil {
		return "", err
	}
	if err := w.awaitForgotten(ctx); err != nil {
		return "", err
	}
	if err := w.host.stop(); err != nil {
		return "", err
	}
	for _, endpoint := range []string{w.endpoint(), w.registration(), w.hostEndpoint()} {
		socket := strings.TrimPrefix(endpoint, "unix://")
		if _, err := os.Lstat(socket); !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("driver and host have ended, and the socket %s is still there (%v)", socket, err)
		}
	}
	return "SIGTERM; the host forgot the driver; both ended with exit code 0, no socket is left", nil
}

// socketsBelow are the sockets in a directory and all below it.
func socketsBelow(dir string) (sockets []string, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type()&fs.ModeSocket != 0 {
			sockets = append(sockets, path)
		}
		return err
	})
	return sockets, err
}

func leave(ctx context.Context, w *walk) (string, error) {
	if err := w.onlyPool(ctx); err != nil {
		return "", err
	}
	if err := sweep(ctx, w.dir); err != nil {
		return "", err
	}
	if err := removeFiles(w.dir, w.own); err != nil {
		return "", err
	}
	return "no mount, no loop device and no file is left", nil
}
