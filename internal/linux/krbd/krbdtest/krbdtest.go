// Package krbdtest is a double of the kernel's RBD driver and of a Ceph cluster:
// images are files, and their devices are loop devices. It answers as the driver
// of Linux 6.1 does.
package krbdtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/krbd"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/test/testkit"
)

// What the cluster accepts.
const (
	FSID    = "5c1a7ec0-0000-4000-8000-000000000001"
	Monitor = "192.0.2.1:6789"
	User    = "node"
	Secret  = "AQBkZWFkYmVlZjAxMjM0NTY3ODlhYmNkZWY="
)

// Machine is a machine whose kernel has RBD, with its cluster.
type Machine struct {
	t   testing.TB
	dir string
	// Before is called with each line that is written, before its effect.
	// Its error is the kernel's.
	Before func(file, line string) error

	mu      sync.Mutex
	keys    map[string]bool
	images  map[string]*image // by pool/namespace/name
	devices map[int]*device
	lines   []string
	ids     int
}

type image struct{ id, path string }

type device struct {
	image    *image
	loop     loop.Device
	isFenced bool
}

// New returns a machine without images. Devices left at the end fail the test.
func New(t testing.TB) *Machine {
	t.Helper()
	m := &Machine{t: t, dir: testkit.Value(filepath.EvalSymlinks(t.TempDir()))(t), keys: map[string]bool{}, images: map[string]*image{}, devices: map[int]*device{}}
	for _, d := range []string{"sys/bus/rbd/devices", "sys/block", "dev", "images"} {
		testkit.Must(t, os.MkdirAll(filepath.Join(m.dir, d), 0o700))
	}
	t.Cleanup(func() {
		for id := range m.devices {
			t.Errorf("left mapped: rbd%d: %v", id, m.remove(id))
		}
	})
	return m
}

// Kernel returns the machine's kernel.
func (m *Machine) Kernel() *krbd.Kernel {
	return &krbd.Kernel{
		Sys: m.path("sys"), Dev: m.path("dev"), Write: m.write,
		Load: func(context.Context) error { return errors.New("the module is loaded") },
	}
}

// Lines are the lines written to add_single_major.
func (m *Machine) Lines() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.lines...)
}

// Create creates an image of zeros, and returns its id.
func (m *Machine) Create(name string, size int64) (id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ids++
	id = fmt.Sprintf("10%x", m.ids) + strings.ToLower(rand.Text()[:6])
	path := m.path("images", id)
	testkit.Must(m.t, os.WriteFile(path, nil, 0o600), os.Truncate(path, size))
	m.images[name] = &image{id, path}
	return id
}

// Delete removes an image's name, as renaming a mapped image does.
func (m *Machine) Delete(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.images, name)
}

// Fence puts the clients of an image's devices on the blocklist.
func (m *Machine) Fence(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.devices {
		d.isFenced = d.isFenced || d.image == m.images[name]
	}
}

// Grow enlarges an image; its devices follow.
func (m *Machine) Grow(name string, size int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.images[name]
	testkit.Must(m.t, os.Truncate(i.path, size))
	for _, d := range m.devices {
		if d.image == i {
			testkit.Must(m.t, loop.Resize(context.Background(), d.loop))
		}
	}
}

func (m *Machine) path(elements ...string) string {
	return filepath.Join(append([]string{m.dir}, elements...)...)
}

func (m *Machine) write(_ context.Context, path, text string, key kernelcall.Key) error {
	file := filepath.Base(path)
	if m.Before != nil {
		if err := m.Before(file, text); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch file {
	case "add_single_major":
		if len(key.Payload) == 0 {
			return unix.EINVAL
		}
		m.keys[key.Name] = true
		m.lines = append(m.lines, text)
		return m.add(text)
	case "remove_single_major":
		id, err := strconv.Atoi(text)
		if err != nil {
			return unix.EINVAL
		}
		return m.remove(id)
	case "refresh":
		id, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil || m.devices[id] == nil {
			return unix.ENOENT
		}
		if m.devices[id].isFenced {
			return unix.ESHUTDOWN
		}
		return loop.Resize(context.Background(), m.devices[id].loop)
	}
	return unix.ENOENT
}

// add maps an image: MONITORS OPTIONS POOL IMAGE SNAPSHOT.
func (m *Machine) add(line string) error {
	words := strings.Fields(line)
	if len(words) != 5 || words[4] != "-" {
		return unix.EINVAL
	}
	options := map[string]string{}
	for o := range strings.SplitSeq(words[1], ",") {
		name, value, _ := strings.Cut(o, "=")
		options[name] = value
	}
	switch {
	case !strings.Contains(words[0], Monitor):
		return unix.ETIMEDOUT
	case !m.keys[options["key"]]:
		return unix.EPERM
	case options["name"] != User:
		return unix.EACCES
	}
	delete(m.keys, options["key"])
	i := m.images[imageName(words[2], options["_pool_ns"], words[3])]
	if i == nil {
		return unix.ENOENT
	}
	_, readOnly := options["ro"]
	f, err := os.OpenFile(i.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	l, opened, err := loop.Attach(context.Background(), loop.Config{File: f, ReadOnly: readOnly})
	if err != nil {
		return err
	}
	defer opened.Close()
	return m.show(i, l, line, words[2], options["_pool_ns"], words[3])
}

func imageName(pool, namespace, name string) string {
	if namespace != "" {
		return pool + "/" + namespace + "/" + name
	}
	return pool + "/" + name
}

// show creates the files of a device; the driver's list has it last.
func (m *Machine) show(i *image, l loop.Device, line, pool, namespace, name string) error {
	id := 0
	for m.devices[id] != nil {
		id++
	}
	m.ids++
	n := strconv.Itoa(id)
	hidden := m.path("sys/bus/rbd/devices", "new-"+n)
	failed := []error{
		os.Mkdir(hidden, 0o700),
		os.Symlink("/sys/block/loop"+strconv.Itoa(l.Number), m.path("sys/block/rbd"+n)),
		unix.Mknod(m.path("dev/rbd"+n), unix.S_IFBLK|0o600, int(unix.Mkdev(l.Major, l.Minor))),
	}
	for attribute, value := range map[string]string{
		"cluster_fsid": FSID, "pool": pool, "pool_id": "2", "pool_ns": namespace, "name": name, "image_id": i.id, "current_snap": "-",
		"client_id": fmt.Sprintf("client%d", 4000+m.ids), "client_addr": fmt.Sprintf("192.0.2.7:0/%d", m.ids), "config_info": line,
		"major": fmt.Sprint(l.Major), "minor": fmt.Sprint(l.Minor), "refresh": "",
	} {
		failed = append(failed, os.WriteFile(filepath.Join(hidden, attribute), []byte(value+"\n"), 0o600))
	}
	m.devices[id] = &device{image: i, loop: l}
	return errors.Join(append(failed, os.Rename(hidden, m.path("sys/bus/rbd/devices", n)))...)
}

func (m *Machine) remove(id int) error {
	d := m.devices[id]
	if d == nil {
		return unix.ENOENT
	}
	err := loop.Detach(context.Background(), d.loop)
	if errors.Is(err, loop.ErrBusy) || errors.Is(err, errs.Precondition) {
		return unix.EBUSY
	}
	n := strconv.Itoa(id)
	delete(m.devices, id)
	return errors.Join(err, os.RemoveAll(m.path("sys/bus/rbd/devices", n)), os.Remove(m.path("sys/block/rbd"+n)), os.Remove(m.path("dev/rbd"+n)))
}
