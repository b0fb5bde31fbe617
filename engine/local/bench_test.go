package local

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/cleatproject/cleat/volume"
)

// BenchmarkLife times calls on thin raw volumes with that many others present;
// the figures are to stay flat.
func BenchmarkLife(b *testing.B) {
	e := open(b, config(onXFS(b)))
	have := 0
	for _, present := range []int{10, 1000, 10000} {
		for ; have < present; have++ {
			create(b, e, volume.CreateRequest{Name: fmt.Sprint("present-", have), Size: volume.SizeRange{Required: mib}})
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		b.Logf("%d volumes: %d KiB of live heap", present, m.HeapAlloc>>10)
		b.Run(fmt.Sprint("present=", present), func(b *testing.B) { benchmarkLife(b, e) })
	}
}

func benchmarkLife(b *testing.B, e *Engine) {
	b.Run("create+delete", func(b *testing.B) {
		for b.Loop() {
			v := create(b, e, volume.CreateRequest{Name: "one more", Size: volume.SizeRange{Required: mib}})
			if err := e.Delete(b.Context(), v.ID); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("snapshot+clone+delete", func(b *testing.B) {
		v := create(b, e, volume.CreateRequest{Name: "source", Size: volume.SizeRange{Required: mib}})
		for b.Loop() {
			s := snapshot(b, e, "cut", v.ID)
			c := create(b, e, volume.CreateRequest{Name: "clone", Source: volume.Source{Snapshot: s.ID}})
			if err := e.Delete(b.Context(), c.ID); err != nil {
				b.Fatal(err)
			}
			if err := e.DeleteSnapshot(b.Context(), s.ID); err != nil {
				b.Fatal(err)
			}
		}
		if err := e.Delete(b.Context(), v.ID); err != nil {
			b.Fatal(err)
		}
	})
	b.Run("list page of 100", func(b *testing.B) {
		for b.Loop() {
			if _, err := e.List(b.Context(), "", 100); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("capacity", func(b *testing.B) {
		for b.Loop() {
			if _, err := e.Capacity(b.Context(), volume.CapacityQuery{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkMountedSnapshot times what writers are kept waiting for, and more:
// the whole call on a mounted volume with 64 MiB in it.
func BenchmarkMountedSnapshot(b *testing.B) {
	e := open(b, config(onXFS(b)))
	v := fsVolume(b, e, "v", "ext4", nil)
	dir, _ := mounted(b, e, v)
	write(b, dir, "file", make([]byte, 40*mib))
	for b.Loop() {
		s := snapshot(b, e, "cut", v.ID)
		if err := e.DeleteSnapshot(b.Context(), s.ID); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen times a start with 10,000 volumes.
func BenchmarkOpen(b *testing.B) {
	c := config(onXFS(b))
	e := open(b, c)
	for i := range 10000 {
		create(b, e, volume.CreateRequest{Name: fmt.Sprint("present-", i), Size: volume.SizeRange{Required: mib}})
	}
	closeEngine(b, e)
	for b.Loop() {
		closeEngine(b, open(b, c))
	}
}
