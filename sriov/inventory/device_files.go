package inventory

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// DeviceFiles has the directories for Multus and container runtimes; ""
// disables one. Methods can be called concurrently for different files.
type DeviceFiles struct {
	DeviceInfo string // usually /var/run/k8s.cni.cncf.io/devinfo/dp
	CDI        string // usually /var/run/cdi
}

const (
	maxName = 255
	// No reader opens these names: Multus opens files by name, the CDI library
	// .json and .yaml.
	tempPrefix = ".cleat-"
	tempSuffix = ".tmp"
	// abandoned is the age of a temporary file of a dead writer.
	abandoned = time.Minute
)

func isFileName(name string) bool { return isBaseName(name) && len(name) <= maxName }

func (f DeviceFiles) dir(file string) (string, error) {
	var dir string
	switch {
	case isSpec(file):
		dir = f.CDI
	case isFileName(file) && strings.HasSuffix(file, infoSuffix):
		dir = f.DeviceInfo
	default:
		return "", fmt.Errorf("%.80q is neither the name of a CDI spec (%s...%s) nor of a device information file (...%s)", file, cdiPrefix, cdiSuffix, infoSuffix)
	}
	if dir == "" {
		return "", fmt.Errorf("no directory is set for %s", file)
	}
	return dir, nil
}

func isSpec(file string) bool {
	return isFileName(file) && strings.HasPrefix(file, cdiPrefix) && strings.HasSuffix(file, cdiSuffix)
}

// Write atomically writes a file of DeviceInfo or CDISpec, unless it has the
// same content. After a crash, readers see the old or the new content.
func (f DeviceFiles) Write(file string, content []byte) error {
	dir, err := f.dir(file)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create the directory for %s: %w", file, err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("open the directory for %s: %w", file, err)
	}
	defer root.Close()
	if hasContent(root, file, content) {
		return nil
	}
	if err := replaceFile(root, file, content); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Join(dir, file), err)
	}
	return nil
}

// hasContent opens regular files only: opening others could block.
func hasContent(root *os.Root, file string, content []byte) bool {
	info, err := root.Lstat(file)
	if err != nil || !info.Mode().IsRegular() || info.Size() != int64(len(content)) {
		return false
	}
	open, err := root.OpenFile(file, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer open.Close()
	found, err := io.ReadAll(io.LimitReader(open, int64(len(content))+1))
	return err == nil && bytes.Equal(found, content)
}

func replaceFile(root *os.Root, file string, content []byte) (err error) {
	temp := tempPrefix + rand.Text() + tempSuffix
	open, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return withoutPath(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(withoutPath(err), withoutPath(ignoreNotExist(root.Remove(temp))))
		}
	}()
	_, err = open.Write(content)
	if err == nil {
		err = open.Sync()
	}
	if err = errors.Join(err, open.Close()); err != nil {
		return err
	}
	if err := root.Rename(temp, file); err != nil {
		return err
	}
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Remove removes a file; a missing one is no error.
func (f DeviceFiles) Remove(file string) error {
	dir, err := f.dir(file)
	if err != nil {
		return err
	}
	if err := ignoreNotExist(os.Remove(filepath.Join(dir, file))); err != nil {
		return fmt.Errorf("remove a file of a device: %w", err)
	}
	return nil
}

func withoutPath(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	if link, ok := errors.AsType[*os.LinkError](err); ok {
		return link.Err
	}
	return err
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Sweep removes files that keep rejects, and temporary files of killed writers.
// CDI specs named sriov-dp-* are removed even for unconfigured resources, since
// two specs must not define the same device. Device information is removed only
// for the given resources: the directory is shared. keep must be true for
// devices that pods hold: their sandbox can be recreated. Sweep returns the
// removed names, also with an error.
func (f DeviceFiles) Sweep(resources []Resource, keep func(file string) bool) (removed []string, err error) {
	var errs []error
	for _, d := range []struct {
		dir  string
		ours func(file string) bool
	}{
		{f.CDI, isSpec},
		{f.DeviceInfo, func(file string) bool { return isInfo(file, resources) }},
	} {
		if d.dir == "" {
			continue
		}
		entries, err := os.ReadDir(d.dir)
		errs = append(errs, ignoreNotExist(err))
		for _, e := range entries {
			if e.IsDir() || !isAbandoned(e) && (!d.ours(e.Name()) || keep(e.Name())) {
				continue
			}
			err := os.Remove(filepath.Join(d.dir, e.Name()))
			switch {
			case err == nil:
				removed = append(removed, e.Name())
			case ignoreNotExist(err) != nil:
				errs = append(errs, err)
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return removed, fmt.Errorf("remove files of devices that are no longer offered: %w", err)
	}
	return removed, nil
}

func isAbandoned(e fs.DirEntry) bool {
	if !strings.HasPrefix(e.Name(), tempPrefix) || !strings.HasSuffix(e.Name(), tempSuffix) || !e.Type().IsRegular() {
		return false
	}
	info, err := e.Info()
	return err == nil && time.Since(info.ModTime()) > abandoned
}

// isInfo checks the address too: a resource name can be a prefix of another.
func isInfo(file string, resources []Resource) bool {
	for _, r := range resources {
		rest, begins := strings.CutPrefix(file, infoPrefix(r))
		id, ends := strings.CutSuffix(rest, infoSuffix)
		if begins && ends && isFileName(file) && isAddress(id) {
			return true
		}
	}
	return false
}
