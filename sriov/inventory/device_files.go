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
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// DeviceFiles are the directories for what others read: Multus and container runtimes.
// "" is one that is not used. Its methods may be called by many at once, for
// different files.
type DeviceFiles struct {
	DeviceInfo string // usually /var/run/k8s.cni.cncf.io/devinfo/dp
	CDI        string // usually /var/run/cdi
}

const (
	maxName = 255
	// tempPrefix and tempSuffix make names that no reader looks at: Multus asks
	// for a file by name, CDI's library only for .json and .yaml.
	tempPrefix = ".cleat-"
	tempSuffix = ".tmp"
	// abandoned is how old a temporary file is before its writer must be dead.
	abandoned = time.Minute
)

// isFileName tells names that may become a file.
func isFileName(name string) bool { return isBaseName(name) && len(name) <= maxName }

// dir is the directory of a file, by what only this package's names look like.
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

// Write puts a file of DeviceInfo or CDISpec into its directory, which is made
// when missing. A reader sees the old content or the new one, also after a crash.
// A file that has the content already is left as it is.
func (f DeviceFiles) Write(file string, content []byte) error {
	dir, err := f.dir(file)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the directory for %s: %w", file, err)
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

// hasContent reports whether a file has a content. It must be a regular one: to open
// others could wait.
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

// Remove removes a file of DeviceInfo or CDISpec; that it is not there is no
// error.
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

// withoutPath leaves out the name of a temporary file, which says nothing to people and
// is another one each time.
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

// Sweep removes the files that keep does not want, and what writers that were
// killed left behind. It touches CDI specs whose names begin with sriov-dp-, also
// those of resources that are no more, since two specs must not name one device;
// and device information of the resources that are named, since other plugins
// have theirs in that directory too. What a pod has must be kept: its sandbox or
// container may be made again at any time. It returns what it removed, also with
// an error.
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

// isAbandoned tells the temporary file of a writer that is dead.
func isAbandoned(e fs.DirEntry) bool {
	if !strings.HasPrefix(e.Name(), tempPrefix) || !strings.HasSuffix(e.Name(), tempSuffix) || !e.Type().IsRegular() {
		return false
	}
	info, err := e.Info()
	return err == nil && time.Since(info.ModTime()) > abandoned
}

// isInfo tells the device information of a device of one of the resources. The
// form of an address keeps apart resources of which one's name begins with the
// other's.
func isInfo(file string, resources []Resource) bool {
	for _, r := range resources {
		rest, begins := strings.CutPrefix(file, infoPrefix(r))
		id, ends := strings.CutSuffix(rest, infoSuffix)
		if begins && ends && isFileName(file) && regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`).MatchString(id) {
			return true
		}
	}
	return false
}
