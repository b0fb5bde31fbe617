package spdktest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

const testCluster = 256 << 10

// newStore starts a process with the store lvs0 of 31 clusters in a file.
func newStore(t *testing.T) (*Process, *client) {
	t.Helper()
	root := t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(root, "disk"), nil, 0o600))
	testkit.Must(t, os.Truncate(filepath.Join(root, "disk"), 32*testCluster))
	p := startProcess(t, NewNetwork(nil), Config{Root: root})
	c := dial(t, p)
	openFile(c)
	c.must("bdev_lvol_create_lvstore", with{"bdev_name": "aio0", "lvs_name": "lvs0", "cluster_sz": testCluster}, nil)
	return p, c
}

func openFile(c *client) {
	c.must("bdev_aio_create", with{"name": "aio0", "filename": "disk", "block_size": 4096, "fallocate": true}, nil)
}

func free(c *client) uint64 {
	var all []struct {
		Free uint64 `json:"free_clusters"`
	}
	c.must("bdev_lvol_get_lvstores", with{"lvs_name": "lvs0"}, &all)
	return all[0].Free
}

func TestDiskRefusals(t *testing.T) {
	p, c := newStore(t)
	c.must("bdev_lvol_create", with{"lvs_name": "lvs0", "lvol_name": "v", "size_in_mib": 1, "thin_provision": true}, nil)
	c.must("bdev_lvol_snapshot", with{"lvol_name": "lvs0/v", "snapshot_name": "s"}, nil)
	if _, err := p.OpenLvol("lvs0/none"); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("open of a missing lvol: %v", err)
	}
	v, s := testkit.Value(p.OpenLvol("lvs0/v"))(t), testkit.Value(p.OpenLvol("lvs0/s"))(t)
	for _, w := range []struct {
		disk   *Disk
		offset int64
		want   error
	}{
		{v, -1, syscall.EINVAL}, {v, 1<<20 - 1, syscall.EINVAL}, {s, 0, syscall.EROFS},
	} {
		if n, err := w.disk.WriteAt([]byte("xy"), w.offset); n != 0 || !errors.Is(err, w.want) {
			t.Errorf("write at %d: %d, %v, want %v", w.offset, n, err, w.want)
		}
	}
	if n, err := v.ReadAt(make([]byte, 8), 1<<20-2); n != 2 || !errors.Is(err, io.EOF) {
		t.Errorf("read at the end: %d, %v", n, err)
	}
	c.must("bdev_lvol_delete", with{"name": "lvs0/v"}, nil)
	if err := errors.Join(v.Sync(), v.Close()); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("sync of a deleted lvol: %v", err)
	}
	if _, err := v.Size(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("size of a closed disk: %v", err)
	}
}

func TestFullStore(t *testing.T) {
	p, c := newStore(t)
	c.must("bdev_lvol_create", with{"lvs_name": "lvs0", "lvol_name": "v", "size_in_mib": 8, "thin_provision": true}, nil)
	v := testkit.Value(p.OpenLvol("lvs0/v"))(t)
	if !p.Fill("lvs0", 2) || p.Fill("lvs1", 2) {
		t.Fatal("the store lvs0 is not found, or lvs1 is")
	}
	n, err := v.WriteAt(make([]byte, 3*testCluster), testCluster/2)
	if n != 3*testCluster/2 || !errors.Is(err, syscall.ENOSPC) || free(c) != 0 {
		t.Errorf("wrote %d, %v, %d clusters free; want %d bytes, none free", n, err, free(c), 3*testCluster/2)
	}
	c.refused(-32602, "bdev_lvol_inflate", with{"name": "lvs0/v"})
	p.Fill("lvs0", math.MaxUint64)
	if free(c) != 29 {
		t.Errorf("%d clusters free, want 29", free(c))
	}
}

// model has the expected data of lvols.
type model struct {
	*testing.T
	*rand.Rand
	p      *Process
	c      *client
	data   map[string][]byte
	snap   map[string]bool
	last   int
	buffer [2 << 20]byte
}

// Random changes of lvols: data and free space are always as expected.
func TestContent(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			p, c := newStore(t)
			m := &model{T: t, Rand: rand.New(rand.NewPCG(seed, 0)), p: p, c: c, data: map[string][]byte{}, snap: map[string]bool{}}
			for step, changes := 0, m.changes(); step < 60 && !t.Failed(); step++ {
				changes[m.IntN(len(changes))]()
				m.check(step)
			}
		})
	}
}

func (m *model) changes() []func() {
	on := func(snapshot bool, change func(name string)) func() {
		return func() {
			var names []string
			for name := range m.data {
				if m.snap[name] == snapshot {
					names = append(names, name)
				}
			}
			if slices.Sort(names); len(names) > 0 {
				change(names[m.IntN(len(names))])
			}
		}
	}
	return []func(){
		m.create, on(false, m.write), on(false, m.write), on(false, m.snapshot), on(true, m.clone), on(false, m.grow),
		on(false, m.remove), on(true, m.remove), on(false, m.inflate), on(false, m.decouple), m.restart,
	}
}

func (m *model) name() string {
	m.last++
	return fmt.Sprint("lvs0/v", m.last)
}

// try reports whether a call succeeded; it can lack space.
func (m *model) try(method string, params with) bool { return m.c.ask(method, params).Error == nil }

func (m *model) create() {
	name, size := m.name(), m.IntN(2)
	if m.try("bdev_lvol_create", with{
		"lvs_name": "lvs0", "lvol_name": name[5:], "size_in_mib": size, "thin_provision": m.IntN(2) == 0,
	}) {
		m.data[name] = make([]byte, size<<20)
	}
}

func (m *model) write(name string) {
	data := m.data[name]
	begin := m.IntN(len(data) + 1)
	what := bytes.Repeat([]byte{byte(m.IntN(256))}, m.IntN(min(len(data)-begin, 2*testCluster)+1))
	n, err := testkit.Value(m.p.OpenLvol(name))(m).WriteAt(what, int64(begin))
	if n < len(what) && (!errors.Is(err, syscall.ENOSPC) || free(m.c) != 0) || n == len(what) && err != nil {
		m.Errorf("wrote %d of %d, %v", n, len(what), err)
	}
	copy(data[begin:], what[:n])
}

func (m *model) snapshot(of string) {
	name := m.name()
	m.c.must("bdev_lvol_snapshot", with{"lvol_name": of, "snapshot_name": name[5:]}, nil)
	m.data[name], m.snap[name] = slices.Clone(m.data[of]), true
}

func (m *model) clone(of string) {
	name := m.name()
	m.c.must("bdev_lvol_clone", with{"snapshot_name": of, "clone_name": name[5:]}, nil)
	m.data[name] = slices.Clone(m.data[of])
}

func (m *model) grow(name string) {
	if size := len(m.data[name])>>20 + 1; size < 3 && m.try("bdev_lvol_resize", with{"name": name, "size_in_mib": size}) {
		m.data[name] = append(m.data[name], make([]byte, 1<<20)...)
	}
}

func (m *model) remove(name string) {
	if m.try("bdev_lvol_delete", with{"name": name}) {
		delete(m.data, name)
	} else if !m.snap[name] {
		m.Errorf("%s is not deleted", name)
	}
}

func (m *model) inflate(name string) { m.try("bdev_lvol_inflate", with{"name": name}) }

func (m *model) decouple(name string) { m.try("bdev_lvol_decouple_parent", with{"name": name}) }

func (m *model) restart() {
	m.p.Kill()
	testkit.Must(m, m.p.Start())
	m.c = dial(m.T, m.p)
	openFile(m.c)
}

func (m *model) check(step int) {
	for name, want := range m.data {
		d := testkit.Value(m.p.OpenLvol(name))(m)
		got := m.buffer[:testkit.Value(d.Size())(m)]
		if _, err := d.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
			m.Errorf("step %d: %s has %d bytes of other data than the %d written (%v)", step, name, len(got), len(want), err)
		}
	}
	var all []struct {
		Allocated uint64 `json:"num_allocated_clusters"`
	}
	m.c.must("bdev_lvol_get_lvols", nil, &all)
	used := uint64(0)
	for _, l := range all {
		used += l.Allocated
	}
	if len(all) != len(m.data) || used+free(m.c) != 31 {
		m.Errorf("step %d: %d lvols with %d clusters and %d free, want %d lvols and 31 clusters", step, len(all), used, free(m.c), len(m.data))
	}
}
